from pathlib import Path

import pytest

from shim.logs.decode import decode
from shim.logs.source import CHUNK, Source, close_all, generations
from tests.logs.docker import DockerLog, line


@pytest.fixture
def docker(tmp_path: Path) -> DockerLog:
    made = DockerLog(tmp_path / "docker", max_file=3)
    made.start()
    return made


def taken(source: Source) -> list[str]:
    """Read all there is now."""
    found: list[str] = []
    while lines := source.read():
        found += [record.log for record in decode(lines).records]
        source.advance(len(lines))
    return found


def logs(docker: DockerLog, first: int = 0) -> list[str]:
    return [record.log for record in docker.written[first:]]


def test_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    source = Source(tmp_path / "docker" / "c-json.log")
    assert source.read() == b""
    docker = DockerLog(tmp_path / "docker")
    docker.start()
    docker.lines(0, 3)
    assert taken(source) == logs(docker)
    source.close()


def test_lines_are_given_again_until_they_are_done_with(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 3)
    assert source.read() == source.read()
    assert source.behind() > 0
    taken(source)
    assert source.behind() == 0
    source.close()


def test_half_a_line_is_waited_for(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 1)
    with docker.path.open("ab") as file:
        file.write(b'{"log":"ha')
    assert taken(source) == ["0\n"]
    with docker.path.open("ab") as file:
        file.write(b'lf\\n","stream":"stdout","time":"T"}\n')
    assert taken(source) == ["half\n"]
    source.close()


def test_no_read_is_longer_than_a_chunk(docker: DockerLog) -> None:
    source = Source(docker.path)
    for _ in range(40):
        docker.write("x" * 16384)
    first = source.read()
    assert len(first) <= CHUNK
    assert taken(source) == logs(docker)
    source.close()


def test_rotation_is_followed_to_the_last_line(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 2)
    assert taken(source) == logs(docker)
    docker.lines(2, 4)  # behind what was read, and before the rename
    docker.rotate()
    assert taken(source) == logs(docker, 2)
    docker.lines(4, 6)
    docker.rotate()
    docker.lines(6, 8)
    assert taken(source) == logs(docker, 4)
    assert not source.dropped
    source.close()


def test_between_rename_and_new_file_it_waits(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 2)
    taken(source)
    docker.path.rename(docker.path.with_name("c-json.log.1"))
    assert taken(source) == []
    docker.path.touch()
    docker.lines(2, 3)
    assert taken(source) == ["2\n"]
    source.close()


def test_files_docker_dropped_unread_are_told_and_the_open_one_is_read(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 2)
    source.read()
    for first in (2, 4, 6, 8):
        docker.rotate()
        docker.lines(first, first + 2)
    assert taken(source) == ["0\n", "1\n", "4\n", "5\n", "6\n", "7\n", "8\n", "9\n"]
    assert source.dropped
    source.close()


def test_a_file_emptied_in_place_begins_anew(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 5)
    taken(source)
    docker.path.write_bytes(b"")
    assert taken(source) == []
    docker.lines(5, 6)
    assert taken(source) == ["5\n"]
    source.close()


def test_rubbish_longer_than_any_line_is_passed_over(docker: DockerLog) -> None:
    source = Source(docker.path)
    with docker.path.open("ab") as file:
        file.write(b"\0" * (CHUNK + 100))
    docker.lines(0, 1)
    docker.lines(1, 2)
    assert taken(source) == ["0\n", "1\n"]
    source.close()


def test_an_open_file_outlives_its_container(docker: DockerLog) -> None:
    source = Source(docker.path)
    docker.lines(0, 1)
    taken(source)
    docker.lines(1, 2)
    docker.path.unlink()
    docker.directory.rmdir()
    assert taken(source) == ["1\n"]
    source.close()


def test_generations_are_oldest_first_and_only_of_this_log(docker: DockerLog) -> None:
    for number in range(12):
        docker.path.with_name(f"c-json.log.{number + 1}").write_bytes(line(docker.write(f"{number}\n")))
    for name in ("c-json.log.gz", "c-json.log.1.gz", "other", "c-json.logs"):
        docker.path.with_name(name).touch()
    found = generations(docker.path)
    try:
        assert len(found) == 13
    finally:
        close_all(found)
