from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.config.model import DockerLogDriver
from shim.logs.follow import Counts, Follower
from shim.logs.protocol import Follow
from tests.logs.docker import DockerLog, cri


@pytest.fixture
def docker(tmp_path: Path, driver: DockerLogDriver) -> DockerLog:
    made = DockerLog(tmp_path / "docker", driver, max_file=2)
    made.start()
    return made


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def follower(docker: DockerLog, path: Path, counts: Counts) -> Iterator[Follower]:
    made = Follower(order_of(docker, path), counts)
    yield made
    made.close()


def order_of(docker: DockerLog, path: Path, *, ended: bool = False) -> Follow:
    return Follow(id="c", docker=str(docker.path), cri=str(path), driver=docker.driver, ended=ended)


def copied(follower: Follower) -> None:
    while follower.step():
        pass


def test_all_output_is_copied(follower: Follower, docker: DockerLog, path: Path, counts: Counts) -> None:
    follower.open()
    assert path.read_bytes() == b""
    docker.lines(0, 3000)
    copied(follower)
    assert path.read_bytes() == docker.as_cri()
    assert counts.lines == 3000
    assert follower.behind() == 0


def test_reopen_continues_in_the_new_file(follower: Follower, docker: DockerLog, path: Path) -> None:
    follower.open()
    docker.lines(0, 2)
    copied(follower)
    docker.lines(2, 4)
    path.rename(path.with_name("0.log.1"))
    follower.reopen()
    assert path.read_bytes() == b""
    copied(follower)
    assert path.with_name("0.log.1").read_bytes() + path.read_bytes() == docker.as_cri()


def test_a_rotated_log_that_is_renamed_back_is_completed(follower: Follower, docker: DockerLog, path: Path) -> None:
    follower.open()
    docker.lines(0, 2)
    copied(follower)
    path.rename(path.with_name("0.log.1"))
    follower.reopen()
    docker.lines(2, 4)
    copied(follower)
    path.with_name("0.log.1").rename(path)
    docker.lines(4, 6)
    copied(follower)
    assert path.read_bytes() == docker.as_cri()


def test_open_continues_after_the_last_line(follower: Follower, docker: DockerLog, path: Path) -> None:
    for first in range(0, 10, 2):
        follower.open()
        docker.lines(first, first + 2)
        copied(follower)
        follower.close()
        path.write_bytes(path.read_bytes() + b"2026-11-21T02:3")
    follower.open()
    assert path.read_bytes() == docker.as_cri()


def test_the_removed_log_of_an_exited_container_is_not_created_again(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 2)
    follower = Follower(order_of(docker, path, ended=True), Counts())
    follower.open()
    copied(follower)
    assert not path.parent.exists()


def test_the_rotated_log_of_an_exited_container_is_completed(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 4)
    path.parent.mkdir()
    path.with_name("0.log.1").write_bytes(b"".join(map(cri, docker.written[:2])))
    follower = Follower(order_of(docker, path, ended=True), Counts())
    follower.open()
    copied(follower)
    follower.close()
    assert path.read_bytes() == b"".join(map(cri, docker.written[2:]))


def test_output_that_docker_drops_while_it_is_read_is_reported_once(follower: Follower, docker: DockerLog) -> None:
    follower.open()
    docker.lines(0, 2)
    copied(follower)
    docker.number += 10**8 - 1
    for first in (2, 4, 6):
        docker.rotate()
        docker.lines(first, first + 2)
    with capture_logs() as reported:
        copied(follower)
        docker.lines(8, 10)
        copied(follower)
    dropped = [line for line in reported if "dropped" in line["event"]]
    assert [line["missing_seconds"] for line in dropped] == [0.1]


def test_output_that_docker_dropped_before_is_reported_with_its_time(follower: Follower, docker: DockerLog) -> None:
    follower.open()
    docker.lines(0, 2)
    copied(follower)
    follower.close()
    docker.number += 2 * 10**8 - 1
    for first in (2, 4, 6):
        docker.rotate()
        docker.lines(first, first + 2)
    with capture_logs() as reported:
        follower.open()
    assert [line["missing_seconds"] for line in reported] == [0.2]


def test_unreadable_lines_are_counted(follower: Follower, docker: DockerLog, path: Path, counts: Counts) -> None:
    follower.open()
    docker.append(b"rubbish\n")
    copied(follower)
    docker.lines(0, 1)
    copied(follower)
    assert (counts.lines, counts.unreadable) == (1, 1)
    assert path.read_bytes() == docker.as_cri()
