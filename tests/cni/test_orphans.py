import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from shim.base import deadline
from shim.cni import orphans
from shim.cni.environment import ENVIRONMENT_LIMIT, sandbox_of_plugin
from shim.cni.orphans import end_orphans
from shim.domain.errors import Cancelled, ResourceExhausted
from shim.hostfs import client
from shim.hostfs.client import HostFs
from tests.waits import SECONDS

SANDBOX, OTHER = "a" * 64, "b" * 64
KILLED = -9


@contextmanager
def running(script: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a shell script in a new session, like a plugin, inside the block, once it has started.

    The script must not call exec: during an exec the kernel shows no environment.
    """
    with subprocess.Popen(
        ["/bin/sh", "-c", f"echo begun; {script}"],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        try:
            yield process
        finally:
            process.kill()


def plugin(script: str = "read _", *, sandbox: str = SANDBOX) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return running(script, CNI_COMMAND="ADD", CNI_CONTAINERID=sandbox)


def test_an_orphaned_plugin_is_killed(host_fs: HostFs) -> None:
    with plugin() as left:
        end_orphans({SANDBOX}, host_fs=host_fs)
        assert left.wait(0) == KILLED


def test_children_of_an_orphaned_plugin_are_killed(host_fs: HostFs) -> None:
    with plugin("sleep 1000 & echo forked; wait") as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"forked\n"
        end_orphans({SANDBOX}, host_fs=host_fs)
        assert left.wait(0) == KILLED
        assert left.stdout.read() == b""  # the child had this pipe open too


@pytest.mark.parametrize(
    "environment",
    [
        {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": OTHER},
        {"CNI_CONTAINERID": SANDBOX},
        {"ABOUT": f"CNI_COMMAND=ADD CNI_CONTAINERID={SANDBOX}"},
        {},
    ],
    ids=["of another runtime", "no plugin", "mentions it", "no environment"],
)
def test_other_processes_are_left_alone(environment: dict[str, str], host_fs: HostFs) -> None:
    with running("read _", **environment) as other:
        end_orphans({SANDBOX}, host_fs=host_fs)
        assert other.poll() is None


def test_an_environment_is_read_up_to_its_limit(tmp_path: Path) -> None:
    with (tmp_path / "environ").open("wb") as environ:
        plugin_environment = f"CNI_COMMAND=ADD\0CNI_CONTAINERID={SANDBOX}\0".encode()
        environ.write(plugin_environment)
        environ.truncate(ENVIRONMENT_LIMIT)
        assert sandbox_of_plugin(tmp_path, {SANDBOX}) == SANDBOX
        environ.truncate(0)
        environ.seek(ENVIRONMENT_LIMIT)
        environ.write(plugin_environment)
        environ.flush()
        assert sandbox_of_plugin(tmp_path, {SANDBOX}) == ""


def test_several_orphans_are_killed(host_fs: HostFs) -> None:
    with ExitStack() as stack:
        left = [stack.enter_context(plugin(sandbox=sandbox)) for sandbox in (SANDBOX, OTHER, SANDBOX)]
        end_orphans({SANDBOX, OTHER}, host_fs=host_fs)
        assert [one.wait(0) for one in left] == [KILLED] * 3


def test_orphans_that_do_not_end_share_one_limited_wait(monkeypatch: pytest.MonkeyPatch, host_fs: HostFs) -> None:
    # A test cannot start an unkillable process, so the wait is replaced.
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _handle, _signal: None)
    monkeypatch.setattr(orphans, "END_SECONDS", 2.0)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(plugin())
        began = time.monotonic()
        end_orphans({SANDBOX}, host_fs=host_fs)
        assert 2.0 <= time.monotonic() - began < 9


def test_without_an_unfinished_sandbox_no_process_is_inspected(host_fs: HostFs, tmp_path: Path) -> None:
    end_orphans(set(), host_fs=host_fs, proc=tmp_path / "not there")


def test_a_process_whose_environment_hangs_delays_nothing(
    host_fs: HostFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of environ does not return, for example, for a process that hangs in munmap on a dead volume."""
    monkeypatch.setattr(orphans, "READ_SECONDS", 0.5)
    with plugin() as left, structlog.testing.capture_logs() as lines:
        for pid in (1, left.pid):
            (tmp_path / str(pid)).mkdir()
        os.mkfifo(tmp_path / "1/environ")
        (tmp_path / str(left.pid) / "environ").symlink_to(f"/proc/{left.pid}/environ")

        end_orphans({SANDBOX}, host_fs=host_fs, proc=tmp_path)

        assert left.wait(0) == KILLED
    warned = [line for line in lines if line["event"] == "cannot check whether process is a CNI plugin"]
    assert {line["pid"] for line in warned} == {1}
    release(tmp_path / "1/environ")


def test_a_slow_start_of_the_helper_process_hides_no_plugin(host_fs: HostFs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "READ_SECONDS", 0.5)
    host_fs.start()
    os.kill(host_fs.pid, signal.SIGSTOP)
    goes_on = threading.Timer(1.5, os.kill, (host_fs.pid, signal.SIGCONT))
    goes_on.start()
    with plugin() as left:
        end_orphans({SANDBOX}, host_fs=host_fs)
        assert left.wait(0) == KILLED
    goes_on.join()


def proc_with(tmp_path: Path, count: int) -> Path:
    """Create a fake /proc with processes that are not plugins."""
    for pid in range(1, count + 1):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(b"PATH=/bin\0")
    return tmp_path


def test_many_processes_take_few_calls_of_the_helper_process(
    host_fs: HostFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    call = host_fs.call

    def counted(*arguments: Any, path: str, **options: Any) -> Any:
        made.append(path)
        return call(*arguments, path=path, **options)

    monkeypatch.setattr(orphans, "BATCH_SECONDS", SECONDS)  # processes of a slow batch are read separately
    monkeypatch.setattr(host_fs, "call", counted)
    end_orphans({SANDBOX}, host_fs=host_fs, proc=proc_with(tmp_path, 10 * orphans.BATCH + 1))
    assert len(made) == 1 + 11


def test_a_plugin_is_found_in_every_batch(host_fs: HostFs, tmp_path: Path) -> None:
    proc = proc_with(tmp_path, 3 * orphans.BATCH)
    plugins = [1, orphans.BATCH, orphans.BATCH + 1, 3 * orphans.BATCH]
    for pid in plugins:
        (proc / str(pid) / "environ").write_bytes(f"CNI_COMMAND=ADD\0CNI_CONTAINERID={SANDBOX}\0".encode())
    assert sorted(orphans._Processes(frozenset({SANDBOX}), host_fs, proc).plugins()) == plugins


def test_too_many_hung_processes_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "READ_SECONDS", 0.5)
    host_fs = HostFs()
    proc = proc_with(tmp_path, 5)
    hanging = (1, 2, 3)
    for pid in hanging:
        (proc / str(pid) / "environ").unlink()
        os.mkfifo(proc / str(pid) / "environ")
    host_fs.call(os.getpid, path="/", what="start")
    monkeypatch.setattr(client, "MAX_CALLS", 3)
    with structlog.testing.capture_logs() as lines:
        end_orphans({SANDBOX}, host_fs=host_fs, proc=proc)
    warned = {line["pid"]: line["error"] for line in lines if "pid" in line}
    assert set(hanging) <= set(warned)
    assert any(isinstance(error, ResourceExhausted) for error in warned.values())
    host_fs.stop()


def test_the_scope_ends_the_wait_for_killed_orphans(host_fs: HostFs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _handle, _signal: None)
    monkeypatch.setattr(orphans, "END_SECONDS", 60.0)
    scope = deadline.Scope()
    with plugin(), deadline.entered(scope):
        leaving = threading.Timer(0.5, scope.cancel)
        leaving.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            end_orphans({SANDBOX}, host_fs=host_fs)
        assert time.monotonic() - began < 30
        leaving.join()


def release(fifo: Path) -> None:
    """Make a read of a FIFO return."""
    with fifo.open("wb"):
        pass
