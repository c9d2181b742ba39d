"""The watch of runc's directories, with a runc that only writes its state."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded
from shim.engine.tasks import STATE_LIMIT, TaskWatch
from tests.waits import SECONDS, wait_until

ONE, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    """Where runc keeps the state of containers."""
    directory = tmp_path / "runtime-runc/moby"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[TaskWatch]:
    tasks = TaskWatch()
    tasks.learn(str(tmp_path))
    yield tasks
    tasks.close()


def write_state(directory: Path, content: str) -> None:
    """Write a state as runc does: to another file, which then gets the name."""
    directory.mkdir(exist_ok=True)
    (directory / "state-1").write_text(content)
    (directory / "state-1").rename(directory / "state.json")


def watches(tasks: TaskWatch) -> int:
    """How many directories are watched."""
    assert tasks._inotify is not None
    return Path(f"/proc/self/fdinfo/{tasks._inotify.fileno()}").read_text().count("inotify wd:")


def test_the_first_process_is_found_when_runc_has_made_it(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task, tasks.starting(OTHER) as other:
        write_state(containers / ONE, '{"id": "one", "init_process_pid": 4711, "config": {"version": "1.0"}}')
        assert task.wait() == 4711
        write_state(containers / OTHER, '{"init_process_pid": 4712}')
        assert other.wait() == 4712


def test_a_state_without_a_process_is_not_the_last_one(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        write_state(containers / ONE, '{"init_process_pid": -1}')
        wait_until(lambda: watches(tasks) == 2)
        write_state(containers / ONE, '{"init_process_pid": 4711}')
        assert task.wait() == 4711


@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        "[]",
        '{"init_process_pid": "1"}',
        "{}",
        pytest.param('{"init_process_pid": 4711, "x": "' + "x" * STATE_LIMIT + '"}', id="too long"),
    ],
)
def test_a_state_that_says_nothing_leaves_it_to_the_answer_of_docker(
    tasks: TaskWatch, containers: Path, content: str
) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task, tasks.starting(OTHER) as later:
        write_state(containers / ONE, content)
        wait_until(lambda: watches(tasks) == 2)
        write_state(containers / OTHER, '{"init_process_pid": 4712}')
        assert later.wait() == 4712
        task.end()
        assert task.wait() == 0


def test_a_start_that_is_answered_first_ends_the_wait(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        write_state(containers / OTHER, '{"init_process_pid": 4712}')
        task.end()
        assert task.wait() == 0


def test_the_wait_ends_with_its_scope(tasks: TaskWatch, containers: Path) -> None:
    with tasks.starting(ONE) as task, deadline.bound(0.05), pytest.raises(DeadlineExceeded, match=ONE):
        task.wait()


def test_nothing_is_waited_for_where_nothing_can_be_seen(tmp_path: Path) -> None:
    tasks = TaskWatch()
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        assert task.wait() == 0  # no pod has run yet
    tasks.learn(str(tmp_path / "elsewhere"))
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        assert task.wait() == 0
    tasks.learn("")
    tasks.close()


def test_a_directory_that_was_made_again_is_watched_again(tasks: TaskWatch, containers: Path) -> None:
    for pid in (4711, 4712):
        with deadline.bound(SECONDS), tasks.starting(ONE) as task:
            write_state(containers / ONE, f'{{"init_process_pid": {pid}}}')
            assert task.wait() == pid
        (containers / ONE / "state.json").unlink()
        (containers / ONE).rmdir()
        containers.rmdir()
        containers.mkdir()


def test_no_watch_stays_for_a_container_that_runs(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        write_state(containers / ONE, '{"init_process_pid": 4711}')
        task.wait()
    assert watches(tasks) == 1
