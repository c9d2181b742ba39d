"""The server's end, with a real log process."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from shim.base import deadline, heartbeat
from shim.domain.errors import Cancelled, FailedPrecondition, ShimError
from shim.logs import process as module
from shim.logs import supervisor
from shim.logs.interface import ContainerLog
from shim.logs.protocol import Figures
from shim.logs.supervisor import LogSupervisor
from tests.engine.contract import WatchedScope
from tests.logs.docker import DockerLog
from tests.waits import wait_until

RUN = 7


class Ends:
    """Notes what may be shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, container_id: str) -> None:
        self.shown.append(container_id)


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log process take long to start: how long a start waits for it is not what is tried here."""
    monkeypatch.setattr(supervisor, "OPEN_SECONDS", 60.0)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@contextmanager
def supervised(ends: Ends, *, drain_seconds: float = 60.0) -> Iterator[LogSupervisor]:
    made = LogSupervisor(level="error", style="json", drain_seconds=drain_seconds)
    made.start(on_drained=ends)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def logs(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogSupervisor]:
    monkeypatch.setattr(module, "MIN_RESTART_SECONDS", 0.001)
    monkeypatch.setattr(module, "RESTART_CAP_SECONDS", 0.001)
    with supervised(ends) as made:
        yield made


@pytest.fixture
def docker(tmp_path: Path) -> DockerLog:
    made = DockerLog(tmp_path / "docker", max_size=20_000, max_file=3)
    made.start()
    return made


@pytest.fixture
def container(docker: DockerLog, path: Path) -> ContainerLog:
    return ContainerLog(id="c", docker=str(docker.path), cri=str(path), created_at=1)


def worker(logs: LogSupervisor) -> int:
    pids: list[int] = []
    wait_until(lambda: pids.append(logs.stats().pid) or pids[-1])  # type: ignore[func-returns-value]
    return pids[-1]


def figures(logs: LogSupervisor) -> Figures:
    """What the log process reports of itself; one that starts slowly is asked again."""
    reported: list[Figures] = []
    wait_until(lambda: reported or reported.extend(filter(None, [logs.stats().figures])))  # type: ignore[func-returns-value]
    return reported[0]


def test_the_log_is_there_when_it_is_followed(logs: LogSupervisor, container: ContainerLog, path: Path) -> None:
    assert logs.follow_now(container) == ""
    assert path.read_bytes() == b""
    assert logs.follow_now(container) == ""


def test_an_end_is_shown_when_everything_is_written(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    logs.follow(container)
    docker.lines(0, 100)
    assert not logs.drained(container, run=RUN)
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()
    assert logs.drained(container, run=RUN)
    assert ends.shown == ["c"]


def test_what_is_no_text_is_kept_where_docker_keeps_it(logs: LogSupervisor, tmp_path: Path, ends: Ends) -> None:
    docker = DockerLog(tmp_path / "local", "local")
    docker.directory.mkdir()
    log = ContainerLog(id="c", docker=str(docker.path), cri=str(tmp_path / "0.log"), driver="local", created_at=1)
    assert logs.follow_now(log) == ""
    docker.start()
    docker.write(bytes(range(128, 256)) + b"\n")
    assert not logs.drained(log, run=RUN)
    wait_until(lambda: ends.shown)
    assert (tmp_path / "0.log").read_bytes() == docker.as_cri()


def test_a_second_run_has_an_end_of_its_own(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    for run in (1, 2, 3):
        docker.lines(run * 10, run * 10 + 10)
        if run == 2:
            logs.follow(container)  # seen running, unlike the others
        assert not logs.drained(container, run=run)
        wait_until(lambda run=run: len(ends.shown) == run)  # type: ignore[misc]
        assert path.exists() == (run > 1)
    assert path.read_bytes() == docker.as_cri()


def test_an_end_is_held_back_also_when_it_is_seen_running_once_more(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    path.parent.write_text("in the way")
    docker.lines(0, 10)
    logs.follow(container)
    for _ in range(2):
        assert not logs.drained(container, run=RUN)
        logs.follow(container)
    assert not logs.drained(container, run=RUN)
    figures(logs)  # asked last, and answered last
    assert not logs.drained(container, run=RUN)
    assert logs.stats().held_back == 1
    assert ends.shown == []
    path.parent.unlink()
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()


def test_a_container_without_a_log_of_docker_is_not_waited_for(logs: LogSupervisor) -> None:
    nothing = ContainerLog(id="c", docker="", cri="/nowhere/0.log", created_at=1)
    logs.follow(nothing)
    assert logs.drained(nothing, run=RUN)


def test_an_end_is_held_back_only_so_long(container: ContainerLog, docker: DockerLog, path: Path, ends: Ends) -> None:
    path.parent.write_text("in the way")
    docker.lines(0, 10)
    with supervised(ends, drain_seconds=0.3) as logs:
        assert "exists" in logs.follow_now(container)
        assert not logs.drained(container, run=RUN)
        wait_until(lambda: ends.shown)
        assert logs.drained(container, run=RUN)
        assert logs.stats().held_back == 0
        path.parent.unlink()  # the rest is written all the same
        wait_until(lambda: path.exists() and path.read_bytes() == docker.as_cri())
    assert ends.shown == ["c"]


def none_left(*_args: object, **_named: object) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_an_end_is_shown_while_no_log_process_can_be_started(
    container: ContainerLog, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", none_left)
    with supervised(ends, drain_seconds=0.3) as logs:
        assert not logs.drained(container, run=RUN)
        wait_until(lambda: ends.shown)
        assert logs.drained(container, run=RUN)
    assert ends.shown == ["c"]


@pytest.mark.parametrize("what", ["socket.socketpair", "subprocess.Popen"])
def test_what_the_node_had_no_more_of_is_tried_again(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends, what: str
) -> None:
    pid = worker(logs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(what, none_left)
        before = logs.stats().restarts
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: logs.stats().restarts > before + 2)
    docker.lines(0, 10)
    logs.drained(container, run=RUN)
    wait_until(lambda: ends.shown)


def test_paths_that_cannot_be_sent_to_the_process_stop_no_other_log(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    for size in (150_000, 400_000):
        long = ContainerLog(id=f"long-{size}", docker=str(docker.path), cri="/" + "a" * size, created_at=1)
        assert "too long" in logs.follow_now(long)
        assert not logs.drained(long, run=RUN)
    assert logs.follow_now(container) == ""
    docker.lines(0, 10)
    assert not logs.drained(container, run=RUN)
    wait_until(lambda: len(ends.shown) == 3)
    assert path.read_bytes() == docker.as_cri()
    assert logs.stats().restarts == 0


def test_reopen(logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path) -> None:
    logs.follow(container)
    docker.lines(0, 10)
    wait_until(lambda: path.exists() and path.read_bytes() == docker.as_cri())
    old = path.with_name("0.log.1")
    path.rename(old)
    logs.reopen("c")
    assert path.read_bytes() == b""
    docker.lines(10, 20)
    wait_until(lambda: old.read_bytes() + path.read_bytes() == docker.as_cri())


def test_reopen_of_what_is_not_followed(logs: LogSupervisor, container: ContainerLog, ends: Ends) -> None:
    with pytest.raises(FailedPrecondition, match="not followed"):
        logs.reopen("c")
    logs.drained(container, run=RUN)
    wait_until(lambda: ends.shown)
    with pytest.raises(FailedPrecondition, match="not followed"):
        logs.reopen("c")


def test_reopen_of_what_ends_meanwhile(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    docker.lines(0, 10)
    logs.follow_now(container)
    wait_until(lambda: path.read_bytes() == docker.as_cri())
    pid = worker(logs)
    os.kill(pid, signal.SIGSTOP)
    logs.drained(container, run=RUN)
    scope = WatchedScope()

    def reopen() -> None:
        with deadline.entered(scope):
            logs.reopen("c")

    with ThreadPoolExecutor() as pool:
        reopened = pool.submit(reopen)
        scope.waited_for.wait()
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(FailedPrecondition, match="reopen the log of container c: its output is not followed"):
            reopened.result()
    wait_until(lambda: ends.shown)


def test_reopen_that_fails_says_why(logs: LogSupervisor, container: ContainerLog, path: Path) -> None:
    logs.follow_now(container)
    path.rename(path.with_name("0.log.1"))
    path.mkdir()
    with pytest.raises(ShimError, match=r"reopen the log of container c: .*0\.log: is a directory"):
        logs.reopen("c")


def test_what_is_forgotten_is_not_followed(logs: LogSupervisor, container: ContainerLog) -> None:
    logs.follow_now(container)
    logs.forget("c")
    logs.forget("c")
    assert figures(logs).followed == 0


def test_a_process_that_is_killed_is_replaced_and_loses_nothing(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    logs.follow_now(container)
    for first in range(0, 500, 100):
        docker.lines(first, first + 100)
        os.kill(worker(logs), signal.SIGKILL)
    assert not logs.drained(container, run=RUN)
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()
    assert logs.stats().restarts >= 1


def test_unanswered_orders_go_to_the_next_process(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path
) -> None:
    logs.follow_now(container)
    docker.lines(0, 10)
    pid = worker(logs)
    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=logs.reopen, args=("c",))
    path.rename(path.with_name("0.log.1"))
    thread.start()
    os.kill(pid, signal.SIGKILL)
    thread.join()
    assert path.exists()
    wait_until(lambda: path.with_name("0.log.1").read_bytes() + path.read_bytes() == docker.as_cri())


def test_a_process_that_hangs_is_replaced_and_no_end_is_shown_without_its_output(
    logs: LogSupervisor,
    container: ContainerLog,
    docker: DockerLog,
    path: Path,
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "PING_SECONDS", 0.05)
    logs.follow_now(container)
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 0.3)
    os.kill(worker(logs), signal.SIGKILL)  # the next one is held to these times
    wait_until(lambda: logs.stats().restarts)
    os.kill(worker(logs), signal.SIGSTOP)
    docker.lines(0, 100)
    assert not logs.drained(container, run=RUN)
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 60.0)  # the one after it may be slow to start
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()


def test_a_process_that_hangs_blocks_no_caller(logs: LogSupervisor, container: ContainerLog) -> None:
    pid = worker(logs)
    os.kill(pid, signal.SIGSTOP)
    try:
        logs.follow(container)
        assert not logs.drained(container, run=RUN)
        scope = deadline.Scope()
        scope.cancel()
        with deadline.entered(scope), pytest.raises(Cancelled):
            logs.reopen("c")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_it_ends_with_the_server_and_not_by_a_signal_to_all(ends: Ends) -> None:
    with supervised(ends) as logs:
        pid = worker(logs)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        figures(logs)
        assert logs.stats().pid == pid
    assert not Path(f"/proc/{pid}").exists()
