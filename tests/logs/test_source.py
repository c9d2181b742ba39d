import os
from pathlib import Path

import pytest

from shim.config.model import DockerLogDriver
from shim.logs.drivers import FORMATS
from shim.logs.format import CHUNK
from shim.logs.source import Source, close_all, generations
from tests.logs.docker import DockerLog, Output


@pytest.fixture
def docker(tmp_path: Path, driver: DockerLogDriver) -> DockerLog:
    made = DockerLog(tmp_path / "docker", driver, max_file=3)
    made.start()
    return made


def source_of(docker: DockerLog) -> Source:
    return Source(docker.path, whole=docker.format.whole)


def taken(source: Source, driver: DockerLogDriver) -> list[str]:
    """Read the content of all there is now."""
    found: list[str] = []
    while records := source.read():
        text = FORMATS[driver].lines(records).text
        found += [line.split(b" ", 3)[3].decode() for line in text.splitlines()]
        source.advance(len(records))
    return found


def logs(docker: DockerLog, first: int = 0) -> list[str]:
    return [output.content.decode().removesuffix("\n") for output in docker.written[first:]]


def test_a_log_that_is_not_there_yet(tmp_path: Path, driver: DockerLogDriver) -> None:
    docker = DockerLog(tmp_path / "docker", driver)
    source = source_of(docker)
    assert source.read() == b""
    docker.start()
    docker.lines(0, 3)
    assert taken(source, docker.driver) == logs(docker)
    source.close()


def test_records_are_given_again_until_they_are_done_with(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 3)
    assert source.read() == source.read()
    assert source.behind() > 0
    taken(source, docker.driver)
    assert source.behind() == 0
    source.close()


def test_files_after_the_current_one_are_behind_too(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 3)
    source.read()
    docker.rotate()
    docker.lines(3, 9)
    older = docker.path.with_name(f"{docker.path.name}.1")
    assert source.behind() == older.stat().st_size + docker.path.stat().st_size
    older.unlink()
    assert source.behind() > docker.path.stat().st_size  # it is still open, and will be read
    taken(source, docker.driver)
    assert source.behind() == 0
    source.close()


def test_a_closed_source_remembers_its_place(docker: DockerLog) -> None:
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
    docker.rotate()  # the file it was closed in is gone
    kept = [file.stat().st_size for file in docker.path.parent.iterdir()]
    assert source.behind() == sum(kept)


def test_what_was_never_opened_is_all_behind(docker: DockerLog, tmp_path: Path) -> None:
    docker.lines(0, 3)
    docker.rotate()
    docker.lines(3, 4)
    assert source_of(docker).behind() == sum(file.stat().st_size for file in docker.path.parent.iterdir())
    (tmp_path / "file").touch()
    assert Source(tmp_path / "file" / "c.log", whole=docker.format.whole).behind() == 0


def test_half_a_record_is_waited_for(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 1)
    record = docker.record(Output(b"half", "stdout", "2026-11-21T02:32:07Z"))
    docker.append(record[:12])
    assert taken(source, docker.driver) == ["0"]
    docker.append(record[12:])
    assert taken(source, docker.driver) == ["half"]
    source.close()


def test_no_read_is_longer_than_a_chunk(docker: DockerLog) -> None:
    source = source_of(docker)
    for _ in range(40):
        docker.write("x" * 16384)
    first = source.read()
    assert len(first) <= CHUNK
    assert taken(source, docker.driver) == logs(docker)
    source.close()


def test_rotation_is_followed_to_the_last_line(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 2)
    assert taken(source, docker.driver) == logs(docker)
    docker.lines(2, 4)  # behind what was read, and before the rename
    docker.rotate()
    assert taken(source, docker.driver) == logs(docker, 2)
    docker.lines(4, 6)
    docker.rotate()
    docker.lines(6, 8)
    assert taken(source, docker.driver) == logs(docker, 4)
    assert not source.dropped
    source.close()


def test_between_rename_and_new_file_it_waits(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 2)
    taken(source, docker.driver)
    docker.path.rename(docker.path.with_name("c-json.log.1"))
    assert taken(source, docker.driver) == []
    docker.path.touch()
    docker.lines(2, 3)
    assert taken(source, docker.driver) == ["2"]
    source.close()


def test_files_dropped_unread_are_reported_and_the_open_one_is_read(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 2)
    source.read()
    for first in (2, 4, 6, 8):
        docker.rotate()
        docker.lines(first, first + 2)
    assert taken(source, docker.driver) == ["0", "1", "4", "5", "6", "7", "8", "9"]
    assert source.dropped
    source.close()


def test_files_that_docker_removes_after_they_were_seen_are_read(docker: DockerLog) -> None:
    source = source_of(docker)
    for first in range(0, 20, 2):
        docker.lines(first, first + 2)
        source.read()  # what it returns is not done with: output comes faster than it is copied
        docker.rotate()
    assert source.behind() > 5 * sum(file.stat().st_size for file in docker.path.parent.iterdir()) / 2
    assert taken(source, docker.driver) == logs(docker)
    assert source.behind() == 0
    assert not source.dropped
    source.close()


def test_files_found_at_the_start_are_read_that_docker_removes_then(docker: DockerLog) -> None:
    for first in (0, 2, 4):
        docker.lines(first, first + 2)
        docker.rotate()
    source = source_of(docker)
    source.read()
    docker.lines(6, 8)
    docker.rotate()
    assert taken(source, docker.driver) == logs(docker, 2)
    source.close()


def test_no_more_than_64_files_wait(docker: DockerLog) -> None:
    source = source_of(docker)
    for number in range(80):
        docker.lines(number, number + 1)
        source.read()
        docker.rotate()
    assert taken(source, docker.driver) == [str(number) for number in (*range(65), 78, 79)]
    assert source.dropped
    source.close()


def test_when_256_mib_wait_only_what_docker_keeps_is_read(tmp_path: Path) -> None:
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


def test_all_files_are_closed(docker: DockerLog) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    source = source_of(docker)
    for number in range(5):
        docker.lines(number, number + 1)
        source.read()
        docker.rotate()
    source.close()
    source.close()
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


def test_rubbish_longer_than_any_line_is_passed_over(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.append(b"\0" * (CHUNK + 100))
    docker.lines(0, 2)
    assert taken(source, docker.driver) == ["0", "1"]
    source.close()


def test_an_open_file_outlives_its_container(docker: DockerLog) -> None:
    source = source_of(docker)
    docker.lines(0, 1)
    taken(source, docker.driver)
    docker.lines(1, 2)
    docker.path.unlink()
    docker.path.parent.rmdir()
    assert taken(source, docker.driver) == ["1"]
    source.close()


def test_generations_are_oldest_first_and_only_of_this_log(docker: DockerLog) -> None:
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
