"""The supervisor with a real log process."""

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
    """Records the containers whose exits may be shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, container_id: str) -> None:
        self.shown.append(container_id)


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time a log process may take to start, which these tests do not examine."""
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
    """Return the report of the log process; ask again while it starts."""
    reported: list[Figures] = []
    wait_until(lambda: reported or reported.extend(filter(None, [logs.stats().figures])))  # type: ignore[func-returns-value]
    return reported[0]


def test_follow_now_creates_the_log(logs: LogSupervisor, container: ContainerLog, path: Path) -> None:
    assert logs.follow_now(container) == ""
    assert path.read_bytes() == b""
    assert logs.follow_now(container) == ""


def test_an_exit_is_shown_when_all_output_is_written(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    logs.follow(container)
    docker.lines(0, 100)
    assert not logs.drained(container, run=RUN)
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()
    assert logs.drained(container, run=RUN)
    assert ends.shown == ["c"]


def test_bytes_that_are_not_utf8_are_kept_with_the_local_driver(
    logs: LogSupervisor, tmp_path: Path, ends: Ends
) -> None:
    docker = DockerLog(tmp_path / "local", "local")
    docker.directory.mkdir()
    log = ContainerLog(id="c", docker=str(docker.path), cri=str(tmp_path / "0.log"), driver="local", created_at=1)
    assert logs.follow_now(log) == ""
    docker.start()
    docker.write(bytes(range(128, 256)) + b"\n")
    assert not logs.drained(log, run=RUN)
    wait_until(lambda: ends.shown)
    assert (tmp_path / "0.log").read_bytes() == docker.as_cri()


def test_each_run_is_drained_separately(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    for run in (1, 2, 3):
        docker.lines(run * 10, run * 10 + 10)
        if run == 2:
            logs.follow(container)  # only this run is seen while it runs
        assert not logs.drained(container, run=run)
        wait_until(lambda run=run: len(ends.shown) == run)  # type: ignore[misc]
        assert path.exists() == (run > 1)
    assert path.read_bytes() == docker.as_cri()


def test_an_exit_stays_deferred_when_the_container_is_followed_again(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    path.parent.write_text("in the way")
    docker.lines(0, 10)
    logs.follow(container)
    for _ in range(2):
        assert not logs.drained(container, run=RUN)
        logs.follow(container)
    assert not logs.drained(container, run=RUN)
    figures(logs)  # orders are answered in order, so the others are done
    assert not logs.drained(container, run=RUN)
    assert logs.stats().held_back == 1
    assert ends.shown == []
    path.parent.unlink()
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()


def test_the_exit_of_a_container_without_a_docker_log_is_not_deferred(logs: LogSupervisor) -> None:
    nothing = ContainerLog(id="c", docker="", cri="/nowhere/0.log", created_at=1)
    logs.follow(nothing)
    assert logs.drained(nothing, run=RUN)


def test_an_exit_is_shown_after_the_drain_timeout(
    container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    path.parent.write_text("in the way")
    docker.lines(0, 10)
    with supervised(ends, drain_seconds=0.3) as logs:
        assert "exists" in logs.follow_now(container)
        assert not logs.drained(container, run=RUN)
        wait_until(lambda: ends.shown)
        assert logs.drained(container, run=RUN)
        assert logs.stats().held_back == 0
        path.parent.unlink()  # the rest of the output is still written
        wait_until(lambda: path.exists() and path.read_bytes() == docker.as_cri())
    assert ends.shown == ["c"]


def none_left(*_args: object, **_named: object) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_an_exit_is_shown_if_the_log_process_cannot_be_started(
    container: ContainerLog, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", none_left)
    with supervised(ends, drain_seconds=0.3) as logs:
        assert not logs.drained(container, run=RUN)
        wait_until(lambda: ends.shown)
        assert logs.drained(container, run=RUN)
    assert ends.shown == ["c"]


@pytest.mark.parametrize("what", ["socket.socketpair", "subprocess.Popen"])
def test_a_failed_start_of_the_log_process_is_retried(
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


def test_paths_too_long_for_a_packet_do_not_stop_other_logs(
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


def test_reopen_continues_in_a_new_file(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path
) -> None:
    logs.follow(container)
    docker.lines(0, 10)
    wait_until(lambda: path.exists() and path.read_bytes() == docker.as_cri())
    old = path.with_name("0.log.1")
    path.rename(old)
    logs.reopen("c")
    assert path.read_bytes() == b""
    docker.lines(10, 20)
    wait_until(lambda: old.read_bytes() + path.read_bytes() == docker.as_cri())


def test_reopen_of_a_container_that_is_not_followed_fails(
    logs: LogSupervisor, container: ContainerLog, ends: Ends
) -> None:
    with pytest.raises(FailedPrecondition, match="not followed"):
        logs.reopen("c")
    logs.drained(container, run=RUN)
    wait_until(lambda: ends.shown)
    with pytest.raises(FailedPrecondition, match="not followed"):
        logs.reopen("c")


def test_reopen_of_a_container_that_exits_meanwhile_fails(
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


def test_a_failed_reopen_gives_the_reason(logs: LogSupervisor, container: ContainerLog, path: Path) -> None:
    logs.follow_now(container)
    path.rename(path.with_name("0.log.1"))
    path.mkdir()
    with pytest.raises(ShimError, match=r"reopen the log of container c: .*0\.log: is a directory"):
        logs.reopen("c")


def test_a_forgotten_container_is_not_followed(logs: LogSupervisor, container: ContainerLog) -> None:
    logs.follow_now(container)
    logs.forget("c")
    logs.forget("c")
    assert figures(logs).followed == 0


def test_a_killed_process_is_replaced_and_no_output_is_lost(
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


def test_a_container_that_runs_again_is_followed_by_the_next_process(
    logs: LogSupervisor, container: ContainerLog, docker: DockerLog, path: Path, ends: Ends
) -> None:
    path.parent.write_text("in the way")
    assert "exists" in logs.follow_now(container)
    docker.lines(0, 10)
    assert not logs.drained(container, run=RUN)
    assert "exists" in logs.follow_now(container)  # somebody has started it again
    os.kill(worker(logs), signal.SIGKILL)
    wait_until(lambda: logs.stats().restarts)
    path.parent.unlink()
    wait_until(lambda: path.exists() and path.read_bytes() == docker.as_cri())
    figures(logs)  # all earlier orders are done
    docker.lines(10, 20)
    wait_until(lambda: path.read_bytes() == docker.as_cri())
    logs.reopen("c")


def test_a_process_that_hangs_is_replaced_and_exits_stay_deferred(
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
    os.kill(worker(logs), signal.SIGKILL)  # the next process uses these times
    wait_until(lambda: logs.stats().restarts)
    os.kill(worker(logs), signal.SIGSTOP)
    docker.lines(0, 100)
    assert not logs.drained(container, run=RUN)
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 60.0)  # the process after that may start slowly
    wait_until(lambda: ends.shown)
    assert path.read_bytes() == docker.as_cri()


def test_a_process_that_hangs_does_not_block_callers(logs: LogSupervisor, container: ContainerLog) -> None:
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


def test_the_process_ends_with_the_server_and_not_by_a_signal_to_its_group(ends: Ends) -> None:
    with supervised(ends) as logs:
        pid = worker(logs)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        figures(logs)
        assert logs.stats().pid == pid
    assert not Path(f"/proc/{pid}").exists()
