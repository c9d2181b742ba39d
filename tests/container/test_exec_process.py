import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shim.base import deadline
from shim.base.deferred_checks import DeferredChecks
from shim.base.process import ProcessHandle
from shim.container import exec_process
from shim.container.exec_process import end_process, last_known_running, wait_ended
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted, ShimError, Unavailable
from shim.domain.ids import ContainerId
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_state import ExecScript
from tests.pods import ready_pod, running
from tests.waits import wait_until

SECONDS = 20.0


@pytest.fixture
def container(rt: Runtime) -> ContainerId:
    return running(rt, ready_pod(rt))


@pytest.fixture
def leader() -> Iterator["subprocess.Popen[bytes]"]:
    """A group leader, like the process of an exec, with a child whose pid it prints."""
    script = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


def begun(engine: FakeEngine, container: ContainerId, *, pid: int) -> str:
    """An exec that has closed its output and runs on."""
    engine.script_exec(ExecScript(endless=True, pid=pid))
    exec_id = engine.create_exec(container, body={"Cmd": ["x"]})
    with engine.start_exec(exec_id):
        return exec_id


def test_the_process_group_is_killed(
    rt: Runtime, engine: FakeEngine, container: ContainerId, leader: "subprocess.Popen[bytes]"
) -> None:
    assert leader.stdout is not None
    assert leader.stdout.readline().strip().isdigit()
    exec_id = begun(engine, container, pid=leader.pid)

    assert end_process(rt, exec_id, container_id=container) is None

    assert leader.wait(SECONDS) == -9
    # The pipe ends when the last process that holds it ends.
    assert leader.stdout.read() == b""


def test_an_exited_command_is_not_killed(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    exec_id = begun(engine, container, pid=os.getpid())
    engine.exit_exec(exec_id, exit_code=4)

    ended = end_process(rt, exec_id, container_id=container)

    assert ended is not None
    assert ended.exit_code == 4


def test_waits_for_a_process_that_runs_on_after_closing_its_output(
    rt: Runtime, engine: FakeEngine, container: ContainerId, leader: "subprocess.Popen[bytes]"
) -> None:
    exec_id = begun(engine, container, pid=leader.pid)

    def end() -> None:
        leader.terminate()
        leader.wait(SECONDS)
        engine.exit_exec(exec_id, exit_code=143)

    ending = threading.Timer(0.1, end)
    ending.start()
    ended = wait_ended(rt, exec_id, container_id=container)
    ending.join()

    assert (ended.running, ended.exit_code) == (False, 143)
    os.killpg(leader.pid, 9)


def test_the_wait_ends_with_its_client(
    rt: Runtime, engine: FakeEngine, container: ContainerId, leader: "subprocess.Popen[bytes]"
) -> None:
    exec_id = begun(engine, container, pid=leader.pid)
    scope = deadline.Scope()
    leaving = threading.Timer(0.1, scope.cancel)
    leaving.start()

    with deadline.entered(scope), pytest.raises(Cancelled):
        wait_ended(rt, exec_id, container_id=container)
    leaving.join()
    os.killpg(leader.pid, 9)


def prepared(engine: FakeEngine, container: ContainerId, *, pid: int = 0) -> str:
    """An exec that has not begun."""
    engine.script_exec(ExecScript(endless=True, pid=pid))
    return engine.create_exec(container, body={"Cmd": ["x"]})


def test_a_failed_kill_is_repeated_later(
    rt: Runtime, engine: FakeEngine, container: ContainerId, leader: "subprocess.Popen[bytes]"
) -> None:
    exec_id = begun(engine, container, pid=leader.pid)
    engine.fail_next("inspect_exec", Unavailable("docker cannot be reached"))

    with pytest.raises(Unavailable):
        end_process(rt, exec_id, container_id=container)

    assert leader.wait(SECONDS) == -9


def test_a_kill_without_a_free_descriptor_is_repeated_later(
    rt: Runtime,
    engine: FakeEngine,
    container: ContainerId,
    leader: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exec_id = begun(engine, container, pid=leader.pid)

    def full(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", full)
        with pytest.raises(ResourceExhausted, match="too many open files"):
            end_process(rt, exec_id, container_id=container)
        assert rt.deferred_checks._checks

    assert leader.wait(SECONDS) == -9


def test_the_last_exit_is_reported_without_a_wait(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    rt.view.disconnect("the list of containers failed")
    epoch = rt.view.begin_sync()
    with deadline.bound(0):  # a wait for the view would fail then
        assert last_known_running(rt, container)
    rt.view.complete_sync(epoch)
    engine.exit_container(container)
    wait_until(lambda: not last_known_running(rt, container))


def test_waiting_without_a_free_descriptor_is_an_error(
    rt: Runtime,
    engine: FakeEngine,
    container: ContainerId,
    leader: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exec_id = begun(engine, container, pid=leader.pid)

    def full(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", full)
    with pytest.raises(ResourceExhausted, match="too many open files"):
        wait_ended(rt, exec_id, container_id=container)


def test_an_exec_that_has_not_begun_is_checked_while_its_container_runs(
    rt: Runtime, engine: FakeEngine, container: ContainerId
) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    exec_id = prepared(engine, container)

    assert end_process(rt, exec_id, container_id=container) is None

    checks = engine.calls.count(("inspect_exec", exec_id))
    wait_until(lambda: engine.calls.count(("inspect_exec", exec_id)) > checks + 1)
    assert rt.deferred_checks._checks
    engine.exit_container(container)
    wait_until(lambda: not rt.deferred_checks._checks)


def test_an_exec_that_exits_at_once_is_checked_no_longer(
    rt: Runtime, engine: FakeEngine, container: ContainerId
) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    exec_id = prepared(engine, container)
    assert end_process(rt, exec_id, container_id=container) is None

    with engine.start_exec(exec_id):
        engine.exit_exec(exec_id, exit_code=0)

    wait_until(lambda: not rt.deferred_checks._checks)


def inspects(engine: FakeEngine) -> int:
    return len(engine.calls_of("inspect_exec"))


def test_docker_is_not_polled_while_the_process_runs(
    rt: Runtime, engine: FakeEngine, container: ContainerId, leader: "subprocess.Popen[bytes]"
) -> None:
    exec_id = begun(engine, container, pid=leader.pid)
    with deadline.bound(3.0), pytest.raises(DeadlineExceeded):
        wait_ended(rt, exec_id, container_id=container)
    assert inspects(engine) == 2  # for its pid, and after opening it
    os.killpg(leader.pid, 9)


def test_an_end_that_docker_misses_is_an_error_after_a_backoff(
    rt: Runtime,
    engine: FakeEngine,
    container: ContainerId,
    leader: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exec_process, "REPORT_SECONDS", 2.0)
    exec_id = begun(engine, container, pid=leader.pid)
    os.killpg(leader.pid, 9)

    began = time.monotonic()
    with pytest.raises(ShimError, match="its exit code is unknown") as raised:
        wait_ended(rt, exec_id, container_id=container)

    assert not isinstance(raised.value, DeadlineExceeded)  # a kubelet would take it for a failed probe
    assert time.monotonic() - began < SECONDS
    assert inspects(engine) < 20  # 10 in the first half second, then 2 a second


def test_a_process_that_docker_never_reports_is_an_error(
    rt: Runtime, engine: FakeEngine, container: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_process, "REPORT_SECONDS", 0.3)
    exec_id = begun(engine, container, pid=0)
    with pytest.raises(ShimError, match="its exit code is unknown"):
        wait_ended(rt, exec_id, container_id=container)


def test_the_clients_deadline_ends_the_wait_for_a_missed_end(
    rt: Runtime, engine: FakeEngine, container: ContainerId
) -> None:
    exec_id = begun(engine, container, pid=0)
    scope = deadline.Scope()
    leaving = threading.Timer(1.0, scope.cancel)
    leaving.start()
    with deadline.entered(scope), pytest.raises(Cancelled):
        wait_ended(rt, exec_id, container_id=container)
    leaving.join()
    with deadline.bound(0.2), pytest.raises(DeadlineExceeded):
        wait_ended(rt, exec_id, container_id=container)


def test_an_exec_that_ended_with_its_container_counts_as_killed(
    rt: Runtime, engine: FakeEngine, container: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_process, "REPORT_SECONDS", 0.3)
    exec_id = begun(engine, container, pid=0)
    engine.exit_container(container)
    wait_until(lambda: not last_known_running(rt, container))
    engine.execs[exec_id].running = True

    assert wait_ended(rt, exec_id, container_id=container).exit_code == 137


def test_an_exec_that_has_not_begun_costs_a_single_inspect(
    rt: Runtime, engine: FakeEngine, container: ContainerId
) -> None:
    exec_id = begun(engine, container, pid=0)
    assert end_process(rt, exec_id, container_id=container) is None
    assert inspects(engine) == 1
    assert rt.deferred_checks.is_pending(f"exec {exec_id} in container {container}")


def test_a_process_that_does_not_end_when_it_is_killed_is_left_to_deferred_checks(
    rt: Runtime,
    engine: FakeEngine,
    container: ContainerId,
    leader: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for a process in a disk wait, which signals do not end at first."""
    exec_id = begun(engine, container, pid=leader.pid)
    began = time.monotonic()
    with monkeypatch.context() as stuck:
        stuck.setattr(ProcessHandle, "kill_group", lambda _handle: None)
        assert end_process(rt, exec_id, container_id=container) is None
        assert time.monotonic() - began < SECONDS
        assert leader.poll() is None
    assert leader.wait(SECONDS) == -9
    wait_until(lambda: not rt.deferred_checks.is_pending(f"exec {exec_id} in container {container}"))


def test_deferred_checks_continue_after_an_outage_of_docker(
    rt: Runtime,
    engine: FakeEngine,
    container: ContainerId,
    leader: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exec_process, "LATE_SECONDS", 0.2)
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    exec_id = begun(engine, container, pid=leader.pid)
    engine.fail_next("inspect_exec", *[DeadlineExceeded("inspect exec: not within 2 s")] * 50)

    with pytest.raises(DeadlineExceeded):
        end_process(rt, exec_id, container_id=container)

    assert leader.wait(SECONDS) == -9
    assert inspects(engine) > 50
