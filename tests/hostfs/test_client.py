import ast
import inspect
import os
import select
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shim.base import deadline, heartbeat
from shim.base.heartbeat import Heartbeat
from shim.cni import conf, orphans, programs, watch
from shim.daemon.cni import HELPER_MODULES
from shim.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ShimError,
    Unavailable,
)
from shim.hostfs import client as module
from shim.hostfs import file_parts
from shim.hostfs.client import HostFs
from shim.hostfs.packets import MAX_PACKET
from shim.hostfs.volumes import Volumes
from shim.hostfs.worker import MODULES
from shim.node import cni_conf
from shim.spec import host_calls
from tests.facts import open_descriptors
from tests.hostfs.calls import count, die, die_once, fail, fail_unfit, fail_unreadable, loaded, pid_of, read, unfit
from tests.waits import SECONDS, wait_until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow for the time that a process needs to start and end on a busy machine."""
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 3 * SECONDS)
    monkeypatch.setattr(module, "_STOP_SECONDS", SECONDS)


@pytest.fixture
def not_started() -> Iterator[HostFs]:
    """A helper process that starts with the first call."""
    host_fs = HostFs()
    yield host_fs
    host_fs.stop()


@pytest.fixture
def host_fs(not_started: HostFs) -> HostFs:
    """A running helper process, so that no call waits for its start."""
    ask_pid(not_started)
    return not_started


def ask_pid(host_fs: HostFs, path: str = "p") -> int:
    """Return the id of the helper process, however long its start takes."""
    return host_fs.call_until_answered(pid_of, path=path, what="pid")


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    """A path whose read does not return before the end of the test, like on a dead volume."""
    path = tmp_path / "dead"
    os.mkfifo(path)
    yield path
    release(path)


def release(path: Path) -> bool:
    """Let reads of the path return; return whether there were any."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def hang(host_fs: HostFs, path: Path, *, seconds: float = 0.05) -> None:
    with pytest.raises(DeadlineExceeded, match=rf"read: {path} has not answered for \d+ s; is the volume behind it"):
        host_fs.call(read, path, path=str(path), what="read", seconds=seconds)


def test_call_runs_in_a_persistent_helper_process(host_fs: HostFs, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")

    assert host_fs.call(read, tmp_path / "file", path="f", what="read") == b"content"
    assert ask_pid(host_fs) == host_fs.pid != os.getpid()


@pytest.mark.parametrize("failure", [NotFound("no such thing"), PermissionError(13, "denied", "/file")])
def test_exception_is_raised_in_the_caller(host_fs: HostFs, failure: Exception) -> None:
    with pytest.raises(type(failure)) as raised:
        host_fs.call(fail, failure, path="p", what="fail")
    assert str(raised.value) == str(failure)


@pytest.mark.parametrize(
    ("result", "message"), [("zeros", "bytes, the limit is 131072"), ("lock", "TypeError: cannot pickle")]
)
def test_unpicklable_result_is_an_error(host_fs: HostFs, result: str, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError), match=message.removeprefix("TypeError: ")):
        host_fs.call(unfit, result, path="p", what="make")


def test_unpicklable_exception_is_described(host_fs: HostFs) -> None:
    with pytest.raises(RuntimeError, match="Unfit: why"):
        host_fs.call(fail_unfit, path="p", what="fail")


def test_unreadable_answer_fails_only_its_call(host_fs: HostFs, dead: Path) -> None:
    hang(host_fs, dead)
    pid = host_fs.pid
    with pytest.raises(ShimError, match=r"answer of the helper process .* cannot be read: TypeError"):
        host_fs.call(fail_unreadable, path="p", what="fail")
    assert ask_pid(host_fs) == host_fs.pid == pid
    with pytest.raises(DeadlineExceeded, match=f"{dead} has not answered"):
        host_fs.call(read, dead, path=str(dead), what="read", seconds=0.05)


def test_the_modules_of_all_calls_are_loaded_at_the_start() -> None:
    """So an installation that is replaced on disk does not mix with the running server."""
    called = {file_parts.__name__} | {
        function.__module__
        for module in (cni_conf, conf, file_parts, host_calls, orphans, programs, watch)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name)
        if "partial" in ast.unparse(node.func) or ast.unparse(node.func).endswith("host_fs.call")
        if (function := getattr(module, node.args[0].id, None)) and function.__module__ != module.__name__
    }
    assert called == {*MODULES, *HELPER_MODULES}
    host_fs = HostFs(modules=HELPER_MODULES)
    try:
        assert called <= host_fs.call(loaded, path="p", what="list modules")
    finally:
        host_fs.stop()


def test_unpicklable_call_is_refused(host_fs: HostFs) -> None:
    with pytest.raises(InvalidArgument, match=r"count: .* bytes, the limit is 131072"):
        host_fs.call(count, "x" * MAX_PACKET, path="p", what="count")
    assert ask_pid(host_fs) == host_fs.pid


def test_hanging_path_is_reported_and_later_calls_fail_at_once(host_fs: HostFs, dead: Path) -> None:
    hang(host_fs, dead)
    [pending] = host_fs._pending.values()
    pending.began -= SECONDS

    for _ in range(100):  # each would take as long
        with pytest.raises(DeadlineExceeded, match=f"{dead} has not answered"):
            host_fs.call(read, dead, path=str(dead), what="read", seconds=SECONDS)
    wait_until(lambda: threads_of(host_fs.pid) > 1)  # it may not have reached the first
    assert threads_of(host_fs.pid) == 2


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_hanging_path_does_not_block_other_paths(host_fs: HostFs, dead: Path) -> None:
    hang(host_fs, dead)
    assert ask_pid(host_fs, "other") == host_fs.pid


def test_path_that_answers_again_is_usable(host_fs: HostFs, dead: Path) -> None:
    hang(host_fs, dead)
    wait_until(lambda: release(dead))
    assert ask_pid(host_fs, str(dead)) == host_fs.pid


def test_calls_on_a_path_are_serialized(host_fs: HostFs, tmp_path: Path) -> None:
    counted = str(tmp_path / "counted")
    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(host_fs.call, count, counted, path="one", what="count") for _ in range(50)]
    assert sorted(result.result() for result in results) == list(range(1, 51))


def test_wait_ends_with_the_client(host_fs: HostFs, dead: Path) -> None:
    scope = deadline.Scope()
    threading.Timer(0.05, scope.cancel).start()
    with deadline.entered(scope), pytest.raises(Cancelled, match=f"read: wait for {dead}"):
        host_fs.call(read, dead, path=str(dead), what="read")


def test_too_many_dead_paths_exhaust_resources(host_fs: HostFs, dead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CALLS", 1)
    hang(host_fs, dead)
    with pytest.raises(ResourceExhausted, match=f"pid: 1 host paths do not answer, {dead} for 0 s"):
        host_fs.call(pid_of, path="other", what="pid")


def test_died_process_is_restarted_and_the_call_repeated(host_fs: HostFs, tmp_path: Path) -> None:
    assert host_fs.call_until_answered(die_once, str(tmp_path / "counted"), path="p", what="die once") == 2


def test_call_right_after_the_process_ended_runs_in_a_new_process(host_fs: HostFs) -> None:
    for _ in range(5):
        before = ask_pid(host_fs)
        handle = os.pidfd_open(before)
        try:
            os.kill(before, signal.SIGKILL)
            select.select([handle], [], [], SECONDS)
        finally:
            os.close(handle)
        assert ask_pid(host_fs) != before


def test_call_that_kills_each_process_fails(host_fs: HostFs, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="die: the helper process for host paths died"):
        host_fs.call_until_answered(die, str(tmp_path / "counted"), path="p", what="die")
    assert (tmp_path / "counted").read_text() == "xx"
    assert ask_pid(host_fs) == host_fs.pid


def test_calls_of_a_dead_process_no_longer_hang(host_fs: HostFs, dead: Path) -> None:
    hang(host_fs, dead)
    os.kill(host_fs.pid, signal.SIGKILL)
    wait_until(lambda: not host_fs.pid)
    assert ask_pid(host_fs, str(dead)) == host_fs.pid


def test_stopped_process_loses_no_call(host_fs: HostFs) -> None:
    os.kill(host_fs.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        host_fs.call(pid_of, path="one", what="pid", seconds=0.05)
    os.kill(host_fs.pid, signal.SIGCONT)
    assert ask_pid(host_fs, "two") == host_fs.pid


def test_unresponsive_process_is_replaced(host_fs: HostFs, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = host_fs.pid
    monkeypatch.setattr(heartbeat, "PING_SECONDS", 0.0)
    host_fs._heartbeat._answer_seconds = 0.2
    later = Heartbeat(answer_seconds=3 * SECONDS)  # its successor may be slow to start
    monkeypatch.setattr(Heartbeat, "of_next", lambda _: later)
    os.kill(stopped, signal.SIGSTOP)

    assert ask_pid(host_fs, "two") == host_fs.pid != stopped

    wait_until(lambda: not Path(f"/proc/{stopped}").exists())


def test_process_with_hanging_calls_answers_pings(host_fs: HostFs, dead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = host_fs.pid
    monkeypatch.setattr(heartbeat, "PING_SECONDS", 0.0)
    hang(host_fs, dead, seconds=0.3)
    wait_until(lambda: host_fs._heartbeat._pinged_at is None)
    assert host_fs.pid == pid


def test_mount_points_are_not_read_while_few_calls_are_in_flight(host_fs: HostFs) -> None:
    assert host_fs.call(pid_of, path="/p", what="pid") == host_fs.pid
    assert host_fs._volumes._file is None


def test_calls_per_volume_are_bounded(host_fs: HostFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(f"21 1 8:1 / / rw - ext4 x rw\n22 21 0:20 / {tmp_path} rw - nfs4 y rw\n")
    monkeypatch.setattr(host_fs, "_volumes", Volumes(tmp_path / "mountinfo"))
    pid = ask_pid(host_fs)
    paths = [tmp_path / f"dead{number}" for number in range(40)]
    for path in paths:
        os.mkfifo(path)

    def ask(path: Path) -> str:
        with pytest.raises(DeadlineExceeded) as raised:
            host_fs.call(read, path, path=str(path), what="read", seconds=0.3)
        return str(raised.value)

    with ThreadPoolExecutor(len(paths)) as pool:
        messages = list(pool.map(ask, paths))
    try:
        assert threads_of(pid) <= module.VOLUME_CALLS + 1
        assert all(str(path) in message for path, message in zip(paths, messages, strict=True))
        assert f"is on {tmp_path}, where 8 paths have not answered" in ask(paths[-1]) or paths[-1].name in messages[-1]
        assert host_fs.call(pid_of, path="/elsewhere", what="pid") == pid
    finally:
        for path in paths:
            release(path)


def test_sigterm_does_not_end_the_helper_process(host_fs: HostFs) -> None:
    pid = host_fs.pid
    os.kill(pid, signal.SIGTERM)
    assert ask_pid(host_fs) == pid


def test_a_stop_ends_process_threads_descriptors_and_calls(dead: Path) -> None:
    before = open_descriptors()
    host_fs = HostFs()
    host_fs.start()
    pid = host_fs.pid
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(host_fs.call, read, dead, path=str(dead), what="read")
        wait_until(lambda: threads_of(pid) >= 2)
        host_fs.stop()
        with pytest.raises(Unavailable):
            call.result(SECONDS)
    assert not Path(f"/proc/{pid}").exists()
    wait_until(lambda: open_descriptors() <= before)  # a thread of an earlier test may hold a descriptor for a moment
    with pytest.raises(Unavailable, match="the server is stopping"):
        host_fs.call(pid_of, path="p", what="pid")


def test_stop_before_the_first_call_is_fine() -> None:
    HostFs().stop()


def test_call_without_a_process_is_refused(not_started: HostFs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as short:
        short.setattr(module, "ChildProcess", refuse)
        not_started.start()
        with pytest.raises(Unavailable, match="start the helper process for host paths"):
            not_started.call(pid_of, path="p", what="pid")
    assert ask_pid(not_started) == not_started.pid
