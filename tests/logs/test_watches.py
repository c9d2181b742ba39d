import errno
import select
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from shim.config.model import DockerLogDriver
from shim.logs.protocol import Follow
from shim.logs.watches import Watches
from tests.logs.docker import DockerLog, Output

QUEUED = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def watches() -> Iterator[Watches]:
    with closing(Watches()) as made:
        yield made


@pytest.fixture
def docker(tmp_path: Path, driver: DockerLogDriver) -> DockerLog:
    made = DockerLog(tmp_path / "c", driver)
    made.directory.mkdir()
    return made


def order(docker: DockerLog) -> Follow:
    return Follow(id=docker.directory.name, docker=str(docker.path), cri="/0.log", driver=docker.driver)


def reported(watches: Watches) -> set[str]:
    """Return the containers reported at once."""
    poll = select.poll()
    poll.register(watches, select.POLLIN)
    return set(watches.changed()) if poll.poll(0) else set()


def test_a_write_is_reported_once(watches: Watches, docker: DockerLog) -> None:
    docker.start()
    for _ in range(2):
        watches.ensure(order(docker))
    assert reported(watches) == set()
    docker.lines(0, 3)
    assert reported(watches) == {"c"}
    assert reported(watches) == set()


def test_a_write_to_a_file_created_later_is_reported(watches: Watches, docker: DockerLog) -> None:
    watches.ensure(order(docker))
    docker.start()
    reported(watches)
    watches.ensure(order(docker))
    docker.lines(0, 1)
    assert reported(watches) == {"c"}
    docker.rotate()
    docker.lines(1, 2)
    assert reported(watches) == {"c"}


def test_the_creation_of_a_directory_is_reported(watches: Watches, tmp_path: Path) -> None:
    docker = DockerLog(tmp_path / "c", "local")
    docker.directory.mkdir()
    for _ in range(2):
        watches.ensure(order(docker))
    assert reported(watches) == set()
    docker.start()
    assert reported(watches) == {"c"}


def test_a_missing_directory_cannot_be_watched(watches: Watches, docker: DockerLog) -> None:
    docker.directory.rmdir()
    with pytest.raises(FileNotFoundError, match=r"inotify watch of /"):
        watches.ensure(order(docker))
    docker.start()
    watches.ensure(order(docker))
    docker.lines(0, 1)
    assert reported(watches) == {"c"}


def test_a_removed_container_is_not_reported(watches: Watches, docker: DockerLog) -> None:
    docker.start()
    watches.ensure(order(docker))
    for _ in range(2):
        watches.remove("c")
    docker.lines(0, 1)
    assert reported(watches) == set()


def test_the_watch_of_a_removed_directory_can_be_removed(watches: Watches, docker: DockerLog) -> None:
    docker.start()
    watches.ensure(order(docker))
    docker.path.unlink()
    docker.path.parent.rmdir()
    watches.remove("c")
    assert reported(watches) == set()


def test_all_containers_are_reported_after_an_inotify_overflow(watches: Watches, tmp_path: Path) -> None:
    both = [DockerLog(tmp_path / name) for name in ("a", "b")]
    for docker in both:
        docker.start()
        watches.ensure(order(docker))
    record = both[0].record(Output(b"x\n", "stdout", "2026-11-21T02:32:06Z"))
    with both[0].path.open("ab", buffering=0) as first, both[1].path.open("ab", buffering=0) as second:
        for _ in range(int(QUEUED.read_text()) // 2 + 1):
            # Alternate between two files: the kernel merges equal consecutive events.
            first.write(record)
            second.write(record)
    assert watches.changed() == ["a", "b"]


def used_up(*_args: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_container_without_a_watch_is_polled_until_it_gets_one(watches: Watches, docker: DockerLog) -> None:
    docker.start()
    with pytest.MonkeyPatch.context() as patched, capture_logs() as said:
        patched.setattr("shim.logs.watches.INotify.add_watch", used_up)
        for _ in range(3):
            watches.ensure(order(docker))
            assert list(watches.unwatched) == ["c"]
    assert [line["event"] for line in said] == ["no inotify watch available, polling container output"]
    watches.ensure(order(docker))
    assert not watches.unwatched
    docker.lines(0, 1)
    assert reported(watches) == {"c"}


def test_a_container_without_a_watch_can_be_removed(watches: Watches, docker: DockerLog) -> None:
    docker.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shim.logs.watches.INotify.add_watch", used_up)
        watches.ensure(order(docker))
    docker.path.unlink()
    docker.path.parent.rmdir()
    watches.ensure(order(docker))
    watches.remove("c")
    assert not watches.unwatched


def test_all_containers_are_polled_without_inotify(docker: DockerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.logs.watches.INotify", used_up)
    with closing(Watches()) as watches:
        assert watches.fileno() == -1
        assert watches.changed() == []
        with pytest.raises(FileNotFoundError):
            watches.ensure(Follow(id="d", docker=str(docker.directory / "no/x/y.log"), cri="/1.log"))
        docker.start()
        watches.ensure(order(docker))
        assert list(watches.unwatched) == ["c"]
