import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.container import exec_sync as exec_sync_module
from shim.container.exec_sync import OUTPUT_LIMIT, exec_sync
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable
from shim.engine.stdcopy import STDOUT
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine, FakeProcessStream
from tests.fakes.engine_state import ExecScript
from tests.pods import created, make_unknown, ready_pod, running
from tests.waits import wait_until

SECONDS = 20.0


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A real process to kill."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_output_and_exit_code_are_returned(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(frames=[(1, b"a"), (2, b"err"), (1, b"b")], exit_code=3))
    answer = exec_sync(rt, container_id=container, cmd=["x"], timeout=0)
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"ab", b"err", 3)


def test_output_beyond_the_limit_is_dropped_for_each_stream(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    half = b"x" * (OUTPUT_LIMIT // 2 + 1)
    engine.script_exec(ExecScript(frames=[(1, half), (1, half), (2, b"e"), (1, b"more")]))
    answer = exec_sync(rt, container_id=container, cmd=["x"], timeout=0)
    assert len(answer.stdout) == OUTPUT_LIMIT
    assert (answer.stderr, answer.exit_code) == (b"e", 0)


def test_the_container_must_run(rt: Runtime) -> None:
    container = created(rt, ready_pod(rt))
    with pytest.raises(FailedPrecondition, match="is not running"):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)


def test_the_process_is_killed_at_the_deadline(
    rt: Runtime, engine: FakeEngine, sleeper: "subprocess.Popen[bytes]"
) -> None:
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(endless=True, pid=sleeper.pid))
    with pytest.raises(DeadlineExceeded):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=1)
    assert sleeper.poll() == -9


def test_the_process_is_killed_when_the_client_goes_away(
    rt: Runtime, engine: FakeEngine, sleeper: "subprocess.Popen[bytes]"
) -> None:
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(frames=[(1, b"begun")], endless=True, pid=sleeper.pid))
    scope = deadline.Scope()
    timer = threading.Timer(0.2, scope.cancel)
    timer.start()
    with deadline.entered(scope), pytest.raises(Cancelled):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)
    assert sleeper.poll() == -9


def test_a_command_runs_on_while_the_view_is_unavailable(
    rt: Runtime, engine: FakeEngine, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_sync_module, "RUNNING_CHECK_SECONDS", 0.05)
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(endless=True, pid=sleeper.pid))
    failures: list[ShimError] = []

    def run() -> None:
        try:
            exec_sync(rt, container_id=container, cmd=["x"], timeout=3)
        except ShimError as error:
            failures.append(error)

    with engine.held("start_exec") as gate:
        caller = threading.Thread(target=run)
        caller.start()
        gate.wait_entered()
        rt.view.disconnect("docker did not answer within 60 s")
    caller.join(SECONDS)

    assert [type(failure) for failure in failures] == [DeadlineExceeded]
    assert sleeper.wait(SECONDS) == -9


def test_any_failure_kills_the_process(
    rt: Runtime, engine: FakeEngine, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise Unavailable("exec: the connection is lost")

    monkeypatch.setattr(exec_sync_module, "_collect", lost)
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(endless=True, pid=sleeper.pid))

    with pytest.raises(Unavailable, match="the connection is lost"):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)

    assert sleeper.poll() == -9


def test_a_container_that_ends_before_its_command_begins_leaves_no_kill_pending(
    rt: Runtime, engine: FakeEngine
) -> None:
    container = running(rt, ready_pod(rt))
    refusal = FailedPrecondition("exec x: Container c is not running: Exited (7) Less than a second ago")
    engine.fail_next("start_exec", refusal)
    engine.fail_next(
        "inspect_exec", NotFound("inspect exec x: No such exec instance: x")
    )  # forgotten with its container

    # The view has not heard of the end yet.
    with capture_logs() as logs, pytest.raises(FailedPrecondition, match="Container c is not running") as raised:
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)

    assert raised.value is refusal
    assert getattr(refusal, "__notes__", []) == []
    assert [line for line in logs if line["log_level"] == "error"] == []


def test_a_failed_kill_is_reported_and_repeated_later(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.fail_next("start_exec", ShimError("exec x: lost the process"))
    engine.fail_next("inspect_exec", ShimError("inspect exec x: out of order"))

    with capture_logs() as logs, pytest.raises(ShimError, match="lost the process") as raised:
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)

    assert raised.value.__notes__ == ["the exec'd process could not be ended yet: inspect exec x: out of order"]
    assert [(line["log_level"], line["event"]) for line in logs] == [
        ("warning", "failed to kill exec process, kill deferred")
    ]
    assert rt.deferred_checks.is_pending(f"exec {logs[0]['exec_id']} in container {container}")


def test_a_command_that_begins_after_the_deadline_is_killed(
    rt: Runtime, engine: FakeEngine, sleeper: "subprocess.Popen[bytes]"
) -> None:
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(endless=True, pid=sleeper.pid))
    engine.fail_next("start_exec", DeadlineExceeded("exec: the deadline of the request has passed"))

    with pytest.raises(DeadlineExceeded, match="the deadline of the request has passed"):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=20)

    assert sleeper.poll() is None
    (exec_id,) = engine.execs
    with engine.start_exec(exec_id):  # Docker starts the exec, whose caller is gone
        assert sleeper.wait(SECONDS) == -9


def test_probes_that_never_begin_time_out_with_few_polls(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(endless=True, pid=0))  # "running", and never a process

    def probe(_: int) -> float:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            exec_sync(rt, container_id=container, cmd=["x"], timeout=1)
        return time.monotonic() - began

    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=10) as pool:
        took = list(pool.map(probe, range(10)))
    assert max(took) < 2.5
    threading.Event().wait(3.0)
    asked, seconds = len(engine.calls_of("inspect_exec")), time.monotonic() - began
    assert asked < 10 * (1 + seconds)


def test_a_timeout_is_deadline_exceeded_even_during_an_outage_of_docker(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(endless=True, pid=0))
    engine.fail_next("inspect_exec", Unavailable("docker cannot be reached"))
    with pytest.raises(DeadlineExceeded):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=1)


def test_an_uninspectable_container_loses_no_output(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_sync_module, "RUNNING_CHECK_SECONDS", 0.05)
    container = running(rt, ready_pod(rt))
    engine.script_exec(ExecScript(frames=[(1, b"one ")], echo=True))
    with ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(partial(exec_sync, rt, container_id=container, cmd=["cat"], timeout=20))
        wait_until(lambda: [begun for begun in engine.execs.values() if begun.running])
        make_unknown(rt, engine, container)
        threading.Event().wait(0.5)  # ten checks
        with engine._changed:
            [begun] = engine.execs.values()
            begun.stdin.data += b"two"
            begun.stdin.ended = True
            engine._changed.notify_all()
        assert answer.result(SECONDS).stdout == b"one two"


class LateStream(FakeProcessStream):
    """Output with a piece in each of several periods, and without an end."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces

    def frames(self) -> Iterator[tuple[int, bytes]]:
        never, scope = threading.Event(), deadline.current()
        if self.left:
            self.left -= 1
            yield 1, b"x"
        never.wait(scope.remaining(None))
        scope.check("read")


def test_late_output_survives_the_end_of_the_container(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_sync_module, "RUNNING_CHECK_SECONDS", 0.05)
    container = running(rt, ready_pod(rt))
    engine.exit_container(container)
    wait_until(lambda: not rt.view.container(container).state.running)
    output = exec_sync_module._Kept()
    exec_sync_module._collect(rt, LateStream(20), output, container_id=container)
    assert output.response(0).stdout == b"x" * 20


@pytest.fixture
def first(rt: Runtime, engine: FakeEngine) -> Iterator["subprocess.Popen[bytes]"]:
    """A real process as the first process of the only container."""
    container = running(rt, ready_pod(rt))
    with subprocess.Popen(["sleep", "1000"]) as process:
        engine.containers[container].pid = process.pid
        rt.view.refresh_container(container)
        assert rt.view.container(container).state.pid == process.pid
        yield process
        process.kill()


def container_of(rt: Runtime) -> str:
    [record] = rt.view.containers()
    return record.id


@pytest.mark.usefixtures("first")
def test_exit_code_0_counts_while_the_container_runs(rt: Runtime) -> None:
    assert exec_sync(rt, container_id=container_of(rt), cmd=["x"], timeout=0).exit_code == 0


@pytest.mark.parametrize("code", [137, 255])
def test_exit_code_0_in_a_killed_container_is_an_error(
    rt: Runtime, engine: FakeEngine, first: "subprocess.Popen[bytes]", code: int
) -> None:
    container = container_of(rt)
    with ThreadPoolExecutor(max_workers=1) as pool, engine.held("inspect_exec") as gate:
        answer = pool.submit(exec_sync, rt, container_id=container, cmd=["x"], timeout=0)
        gate.wait_entered()
        first.kill()
        first.wait(SECONDS)
        with engine.held("inspect_container", container):  # Docker learns of the end a moment later
            engine.release(gate)
            with pytest.raises(TimeoutError):
                answer.result(0.1)
        engine.exit_container(container, exit_code=code)
        with pytest.raises(ShimError, match=rf"Docker reports exit code 0, but the container was killed .*{code}"):
            answer.result(SECONDS)


@pytest.mark.parametrize("code", [126, 127, 128])
def test_a_command_whose_container_ended_before_it_began_has_no_exit_code(
    rt: Runtime, engine: FakeEngine, first: "subprocess.Popen[bytes]", code: int
) -> None:
    container = container_of(rt)
    engine.script_exec(ExecScript(exit_code=code))
    if code == 128:
        with pytest.raises(ShimError, match="Docker could not start the command"):
            exec_sync(rt, container_id=container, cmd=["x"], timeout=0)
    else:
        assert exec_sync(rt, container_id=container, cmd=["x"], timeout=0).exit_code == code

    first.kill()  # Docker learns of the end later
    first.wait(SECONDS)
    engine.script_exec(ExecScript(exit_code=code))
    with pytest.raises(FailedPrecondition, match=f"container {container} is not running"):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)


_RUNC = b"OCI runtime exec failed: exec failed: unable to start container process: "


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize(
    "reason",
    [
        b"unable to setup user: setenv: invalid argument: unknown",
        b"can't get final child's PID from pipe: EOF: unknown",
        b"unable to start init: fork/exec /proc/self/fd/6: resource temporarily unavailable: unknown",
    ],
)
def test_a_command_that_an_old_engine_could_not_start_has_no_exit_code(
    rt: Runtime, engine: FakeEngine, reason: bytes
) -> None:
    engine.script_exec(ExecScript(frames=[(STDOUT, _RUNC + reason)], exit_code=126))
    with pytest.raises(ShimError, match="Docker could not start the command"):
        exec_sync(rt, container_id=container_of(rt), cmd=["x"], timeout=0)


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize(
    "output",
    [
        _RUNC + b'exec: "x": executable file not found in $PATH: unknown',
        _RUNC + b'exec: "/x": permission denied: unknown',
        b"said by a command that ended with 126",
    ],
)
def test_an_exit_code_126_because_of_the_file_is_the_answer(rt: Runtime, engine: FakeEngine, output: bytes) -> None:
    engine.script_exec(ExecScript(frames=[(STDOUT, output)], exit_code=126))
    done = exec_sync(rt, container_id=container_of(rt), cmd=["x"], timeout=0)
    assert (done.stdout, done.exit_code) == (output, 126)


def test_a_command_may_end_its_container(rt: Runtime, engine: FakeEngine, first: "subprocess.Popen[bytes]") -> None:
    container = container_of(rt)
    with ThreadPoolExecutor(max_workers=1) as pool, engine.held("inspect_exec") as gate:
        answer = pool.submit(exec_sync, rt, container_id=container, cmd=["x"], timeout=0)
        gate.wait_entered()
        first.kill()
        first.wait(SECONDS)
        engine.exit_container(container, exit_code=0)
        engine.release(gate)
        assert answer.result(SECONDS).exit_code == 0


def test_exit_code_0_of_a_running_process_is_an_error(
    rt: Runtime, engine: FakeEngine, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    container = running(rt, ready_pod(rt))
    monkeypatch.setattr("shim.view.processes._in_cgroup_of", lambda known, _: known == container)
    engine.script_exec(ExecScript(pid=sleeper.pid))
    with pytest.raises(ShimError, match=f"Docker reports exit code 0, but process {sleeper.pid} still runs"):
        exec_sync(rt, container_id=container, cmd=["x"], timeout=0)
