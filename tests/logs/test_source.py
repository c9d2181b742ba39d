import os
import socket
from pathlib import Path

import pytest

from shim.config.model import DockerLogDriver
from shim.logs.drivers import FORMATS
from shim.logs.format import CHUNK
from shim.logs.source import Source, close_all, generations
from tests.descriptors import no_descriptor_free
from tests.logs.docker import DockerLog, Output


@pytest.fixture
def docker(tmp_path: Path, driver: DockerLogDriver) -> DockerLog:
    made = DockerLog(tmp_path / "docker", driver, max_file=3)
    made.start()
    return made


def source_of(docker: DockerLog) -> Source:
    return Source(docker.path, whole=docker.format.whole)


def taken(source: Source, driver: DockerLogDriver) -> list[str]:
    """Read all records that exist now, and return their content."""
    found: list[str] = []
    while records := source.read():
        text = FORMATS[driver].lines(records).text
        found += [line.split(b" ", 3)[3].decode() for line in text.splitlines()]
        source.advance(len(records))
    return found


def logs(docker: DockerLog, first: int = 0) -> list[str]:
    return [output.content.decode().removesuffix("\n") for output in docker.written[first:]]


def test_a_log_may_be_created_after_the_first_read(tmp_path: Path, driver: DockerLogDriver) -> None:
    docker = DockerLog(tmp_path / "docker", driver)
    source = source_of(docker)
    assert source.read() == b""
    docker.start()
    docker.lines(0, 3)
    assert taken(source, docker.driver) == logs(docker)
    source.close()


def test_read_returns_the_same_records_until_advance(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 3)
    assert source.read() == source.read()
    assert source.behind() > 0
    taken(source, docker.driver)
    assert source.behind() == 0
    source.close()


def test_behind_counts_all_files_after_the_position(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 3)
    source.read()
    docker.rotate()
    docker.lines(3, 9)
    older = docker.path.with_name(f"{docker.path.name}.1")
    assert source.behind() == older.stat().st_size + docker.path.stat().st_size
    older.unlink()
    assert source.behind() > docker.path.stat().st_size  # the rotated file is still open, and will be read
    taken(source, docker.driver)
    assert source.behind() == 0
    source.close()


def test_a_closed_source_counts_from_its_last_position(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 3)
    taken(source, docker.driver)
    before = docker.path.stat().st_size
    source.close()
    assert source.behind() == 0
    docker.lines(3, 9)
    added = docker.path.stat().st_size - before
    assert source.behind() == added
    docker.rotate()
    docker.lines(9, 12)
    assert source.behind() == added + docker.path.stat().st_size
    docker.rotate()
    docker.lines(12, 13)
    docker.rotate()  # the file of the position is removed
    kept = [file.stat().st_size for file in docker.path.parent.iterdir()]
    assert source.behind() == sum(kept)


def test_behind_counts_all_files_if_the_source_was_never_open(docker: DockerLog, tmp_path: Path) -> None:
    docker.lines(0, 3)
    docker.rotate()
    docker.lines(3, 4)
    assert source_of(docker).behind() == sum(file.stat().st_size for file in docker.path.parent.iterdir())
    (tmp_path / "file").touch()
    assert Source(tmp_path / "file" / "c.log", whole=docker.format.whole).behind() == 0


def test_an_incomplete_record_is_not_returned(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 1)
    record = docker.record(Output(b"half", "stdout", "2026-11-21T02:32:07Z"))
    docker.append(record[:12])
    assert taken(source, docker.driver) == ["0"]
    docker.append(record[12:])
    assert taken(source, docker.driver) == ["half"]
    source.close()


def test_a_read_returns_at_most_a_chunk(docker: DockerLog) -> None:
    source = source_of(docker)
    for _ in range(40):
        docker.write("x" * 16384)
    first = source.read()
    assert len(first) <= CHUNK
    assert taken(source, docker.driver) == logs(docker)
    source.close()


def test_rotation_loses_no_line(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 2)
    assert taken(source, docker.driver) == logs(docker)
    docker.lines(2, 4)  # after the last read, before the rename
    docker.rotate()
    assert taken(source, docker.driver) == logs(docker, 2)
    docker.lines(4, 6)
    docker.rotate()
    docker.lines(6, 8)
    assert taken(source, docker.driver) == logs(docker, 4)
    assert not source.dropped
    source.close()


def test_read_waits_between_the_rename_and_the_new_file(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 2)
    taken(source, docker.driver)
    docker.path.rename(docker.path.with_name("c-json.log.1"))
    assert taken(source, docker.driver) == []
    docker.path.touch()
    docker.lines(2, 3)
    assert taken(source, docker.driver) == ["2"]
    source.close()


def test_files_removed_unread_are_reported_and_the_open_file_is_read(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 2)
    source.read()
    for first in (2, 4, 6, 8):
        docker.rotate()
        docker.lines(first, first + 2)
    assert taken(source, docker.driver) == ["0", "1", "4", "5", "6", "7", "8", "9"]
    assert source.dropped
    source.close()


def test_files_that_docker_removes_after_a_read_are_still_read(docker: DockerLog) -> None:
    source = source_of(docker)
    for first in range(0, 20, 2):
        docker.lines(first, first + 2)
        source.read()  # without `advance`: output arrives faster than it is copied
        docker.rotate()
    assert source.behind() > 5 * sum(file.stat().st_size for file in docker.path.parent.iterdir()) / 2
    assert taken(source, docker.driver) == logs(docker)
    assert source.behind() == 0
    assert not source.dropped
    source.close()


def test_files_that_docker_removes_after_seek_are_still_read(docker: DockerLog) -> None:
    for first in (0, 2, 4):
        docker.lines(first, first + 2)
        docker.rotate()
    source = source_of(docker)
    source.read()
    docker.lines(6, 8)
    docker.rotate()
    assert taken(source, docker.driver) == logs(docker, 2)
    source.close()


def test_at_most_64_files_wait(docker: DockerLog) -> None:
    source = source_of(docker)
    for number in range(80):
        docker.lines(number, number + 1)
        source.read()
        docker.rotate()
    assert taken(source, docker.driver) == [str(number) for number in (*range(65), 78, 79)]
    assert source.dropped
    source.close()


def test_no_further_file_is_opened_while_256_mib_wait(tmp_path: Path) -> None:
    docker = DockerLog(tmp_path / "docker")
    docker.start()
    source = source_of(docker)
    docker.lines(0, 1)
    for number in range(1, 8):
        source.read()
        docker.rotate()
        docker.lines(number, number + 1)
        if number == 2:
            docker.append(b"\0" * 100)
            os.truncate(docker.path, 256 << 20)
    assert taken(source, docker.driver) == ["0", "1", "2", "6", "7"]
    assert source.dropped
    source.close()


def test_close_closes_all_files(docker: DockerLog) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    source = source_of(docker)
    for number in range(5):
        docker.lines(number, number + 1)
        source.read()
        docker.rotate()
    source.close()
    source.close()
    assert set(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("fails", [1, 2])
def test_files_that_were_opened_before_one_fails_are_closed(docker: DockerLog, fails: int) -> None:
    docker.lines(0, 1)
    for _ in range(2):
        docker.rotate()
        docker.lines(0, 1)
    wrong = docker.path.with_name(f"{docker.path.name}.{fails}")
    wrong.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind(str(wrong))
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="No such device or address"):
        generations(docker.path)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_files_that_were_opened_are_closed_if_no_descriptor_is_left_to_list_them_again(docker: DockerLog) -> None:
    docker.lines(0, 1)
    before = set(Path("/proc/self/fd").iterdir())
    with no_descriptor_free() as held:
        os.close(held.pop())  # enough for the first listing and for the file, but not for both
        with pytest.raises(OSError, match="Too many open files"):
            generations(docker.path)
        held.append(os.open(os.devnull, os.O_RDONLY))
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_file_truncated_in_place_is_read_from_its_start(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 5)
    taken(source, docker.driver)
    docker.path.write_bytes(b"")
    assert taken(source, docker.driver) == []
    docker.lines(5, 6)
    assert taken(source, docker.driver) == ["5"]
    source.close()


def test_output_that_follows_a_truncation_at_once_is_read(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 5)
    taken(source, docker.driver)
    docker.path.write_bytes(b"")
    docker.lines(5, 6)
    assert taken(source, docker.driver) == ["5"]
    source.close()


def test_garbage_longer_than_a_line_is_skipped(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.append(b"\0" * (CHUNK + 100))
    docker.lines(0, 2)
    assert taken(source, docker.driver) == ["0", "1"]
    source.close()


def test_an_open_file_is_read_after_its_container_was_removed(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 1)
    taken(source, docker.driver)
    docker.lines(1, 2)
    docker.path.unlink()
    docker.path.parent.rmdir()
    assert taken(source, docker.driver) == ["1"]
    source.close()


def test_generations_returns_only_files_of_the_log_oldest_first(docker: DockerLog) -> None:
    name = docker.path.name
    for number in range(12):
        record = docker.record(docker.write(f"{number}\n"))
        docker.path.with_name(f"{name}.{number + 1}").write_bytes(record)
    for other in (f"{name}.gz", f"{name}.1.gz", "other", f"{name}s"):
        docker.path.with_name(other).touch()
    found = generations(docker.path)
    try:
        assert len(found) == 13
    finally:
        close_all(found)
