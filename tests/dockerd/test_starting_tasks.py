"""The watch of runc's directories, with a runc that only writes its state."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shim.base import deadline
from shim.dockerd.starting_tasks import AT_ONCE, SEARCHES, STATE_LIMIT, TaskWatch
from shim.domain.errors import DeadlineExceeded
from tests.mounts import need_root
from tests.threads import no_thread_for
from tests.waits import SECONDS, wait_until

ONE, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    """The directory of runc's states."""
    directory = tmp_path / "runtime-runc/moby"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[TaskWatch]:
    tasks = TaskWatch()
    tasks.learn(str(tmp_path))
    yield tasks
    tasks.close()


def test_a_start_goes_on_if_no_thread_can_be_started(tasks: TaskWatch, containers: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        no_thread_for("engine-tasks", patch)
        with tasks.starting(ONE) as task:
            assert task.wait() == 0
    with tasks.starting(OTHER) as task:
        write_state(containers / OTHER, f'{{"init_process_pid": {os.getpid()}}}')
        with deadline.bound(SECONDS):
            assert task.wait() == os.getpid()


def write_state(directory: Path, content: str) -> None:
    """Write a state as runc does: to another file, which is then renamed."""
    directory.mkdir(exist_ok=True)
    (directory / "state-1").write_text(content)
    (directory / "state-1").rename(directory / "state.json")


@contextmanager
def process_of_its_own_namespace() -> Iterator[int]:
    """Run the first process of a PID namespace, like a container's, and yield its pid."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as outer:
        try:
            wait_until(lambda: child_of(outer.pid))
            yield child_of(outer.pid)
        finally:
            outer.kill()


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def watches(tasks: TaskWatch) -> int:
    """Return the number of watched directories."""
    assert tasks._inotify is not None
    return Path(f"/proc/self/fdinfo/{tasks._inotify.fileno()}").read_text().count("inotify wd:")


def test_the_first_process_is_found_in_runcs_state(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task, tasks.starting(OTHER) as other:
        write_state(containers / ONE, '{"id": "one", "init_process_pid": 4711, "config": {"version": "1.0"}}')
        assert task.wait() == 4711
        write_state(containers / OTHER, '{"init_process_pid": 4712}')
        assert other.wait() == 4712


def test_a_state_without_a_process_is_not_final(tasks: TaskWatch, containers: Path) -> None:
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
def test_an_unreadable_state_is_ignored(tasks: TaskWatch, containers: Path, content: str) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task, tasks.starting(OTHER) as later:
        write_state(containers / ONE, content)
        wait_until(lambda: watches(tasks) == 2)
        write_state(containers / OTHER, '{"init_process_pid": 4712}')
        assert later.wait() == 4712
        task.end()
        assert task.wait() == 0


def test_dockers_answer_ends_the_wait(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        write_state(containers / OTHER, '{"init_process_pid": 4712}')
        task.end()
        assert task.wait() == 0


def test_the_wait_ends_with_its_scope(tasks: TaskWatch, containers: Path) -> None:
    with tasks.starting(ONE) as task, deadline.bound(0.05), pytest.raises(DeadlineExceeded, match=ONE):
        task.wait()


def test_an_unreadable_exec_root_ends_the_wait(tmp_path: Path) -> None:
    tasks = TaskWatch()
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        assert task.wait() == 0  # the exec root is unknown
    tasks.learn(str(tmp_path / "elsewhere"))
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        assert task.wait() == 0
    tasks.learn("")
    tasks.close()


def test_a_recreated_directory_is_watched_again(tasks: TaskWatch, containers: Path) -> None:
    for pid in (4711, 4712):
        with deadline.bound(SECONDS), tasks.starting(ONE) as task:
            write_state(containers / ONE, f'{{"init_process_pid": {pid}}}')
            assert task.wait() == pid
        (containers / ONE / "state.json").unlink()
        (containers / ONE).rmdir()
        containers.rmdir()
        containers.mkdir()


def test_the_watch_of_a_started_container_is_removed(tasks: TaskWatch, containers: Path) -> None:
    with deadline.bound(SECONDS), tasks.starting(ONE) as task:
        write_state(containers / ONE, '{"init_process_pid": 4711}')
        task.wait()
    assert watches(tasks) == 1


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A control group with only an empty `cgroup.procs`."""
    directory = tmp_path / "group"
    directory.mkdir()
    (directory / "cgroup.procs").write_text("")
    return directory


def test_the_first_process_is_found_in_the_control_group_before_runc_has_a_state(
    tasks: TaskWatch, containers: Path, group: Path
) -> None:
    need_root()
    with deadline.bound(SECONDS), tasks.starting(ONE, group=str(group)) as task, process_of_its_own_namespace() as pid:
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n{pid}\n")
        (containers / ONE).mkdir()
        assert task.wait() == pid


@pytest.mark.parametrize("content", ["", "{pid}\n", "4194305\n", "nonsense\n", None])
def test_the_state_counts_if_the_control_group_shows_no_process(
    tasks: TaskWatch, containers: Path, group: Path, content: str | None
) -> None:
    if content is None:
        (group / "cgroup.procs").unlink()
    else:
        (group / "cgroup.procs").write_text(content.format(pid=os.getpid()))
    with deadline.bound(SECONDS), tasks.starting(ONE, group=str(group)) as task:
        (containers / ONE).mkdir()
        wait_until(lambda: task.searches == 0)
        write_state(containers / ONE, '{"init_process_pid": 4711}')
        assert task.wait() == 4711


def test_control_groups_are_not_read_during_many_starts(tasks: TaskWatch, containers: Path, group: Path) -> None:
    need_root()
    with ExitStack() as stack:
        stack.enter_context(deadline.bound(SECONDS))
        (group / "cgroup.procs").write_text(str(stack.enter_context(process_of_its_own_namespace())))
        names = [f"{number}" * 64 for number in range(AT_ONCE + 1)]
        started = [stack.enter_context(tasks.starting(name, group=str(group))) for name in names]
        for name in names:
            write_state(containers / name, '{"init_process_pid": 4711}')
        assert [task.wait() for task in started] == [4711] * len(names)
        assert [task.searches for task in started] == [SEARCHES] * len(names)
