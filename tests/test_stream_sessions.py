"""Exec, attach and port-forward, from a client's bytes to an Engine in memory."""

import errno
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from shim import stream_sessions
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.container import exec as container_exec
from shim.container.attach import attach_url
from shim.container.exec import exec_url
from shim.domain.errors import FailedPrecondition, ShimError
from shim.domain.ids import ContainerId
from shim.runtime import Runtime
from shim.sandbox.portforward import port_forward_url
from shim.sandbox.stop import stop_pod_sandbox
from shim.stream_sessions import serve_session
from shim.streaming import spdy, stalls
from shim.streaming.tokens import Kind, Task
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_state import ExecScript
from tests.pods import created, make_unknown, ready_pod, running
from tests.streaming.client import SECONDS, SpdyClient, session_of, task
from tests.threads import no_thread_for
from tests.waits import wait_until

V4 = "v4.channel.k8s.io"
SERVING = "serving"
KEPT = 40
"""Number of 64 KiB pieces of an exited process: about as much as Docker buffers."""


@pytest.fixture
def container(rt: Runtime) -> ContainerId:
    return running(rt, ready_pod(rt), stdin=True, stdin_once=True)


@contextmanager
def client_of(rt: Runtime, task: Task, *kinds: str) -> Iterator[tuple[SpdyClient, dict[str, int]]]:
    """Serve a session; yields its client and the ids of the open streams."""
    with session_of(spdy.Connection()) as (session, far):

        def serve() -> None:
            with deadline.entered(session.scope), suppress(ShimError):
                serve_session(rt, task, session, V4)
            session.finish()

        serving = threading.Thread(target=serve, name=SERVING)
        serving.start()
        client = SpdyClient(far)
        yield client, {kind: client.open(streamtype=kind) for kind in kinds}
        far.close()
        serving.join(SECONDS)
        assert not serving.is_alive()


def status(client: SpdyClient, stream: int) -> dict[str, object]:
    return json.loads(client.received[stream])  # type: ignore[no-any-return]


def test_exec_from_output_to_exit_code(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    engine.script_exec(ExecScript(frames=[(1, b"out"), (2, b"err")], exit_code=3))
    asked = task(container_id=container, cmd=("x",))
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        client.read_to_end()

        assert client.received[opened["stdout"]] == b"out"
        assert client.received[opened["stderr"]] == b"err"
        assert status(client, opened["error"])["reason"] == "NonZeroExitCode"


def test_exec_reads_input_to_its_end(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    engine.script_exec(ExecScript(echo=True))
    asked = task(container_id=container, cmd=("cat",), stdin=True)
    with client_of(rt, asked, "error", "stdin", "stdout", "stderr") as (client, opened):
        client.send(opened["stdin"], b"question", fin=True)
        client.read_to_end()

        assert client.received[opened["stdout"]] == b"question"
        assert status(client, opened["error"])["status"] == "Success"


def test_a_terminal_has_a_size_and_no_detach_keys(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    engine.script_exec(ExecScript(prints_size=True))
    asked = task(container_id=container, cmd=("sh",), stdin=True, stderr=False, tty=True)
    with client_of(rt, asked, "error", "stdin", "stdout", "resize") as (client, opened):
        client.send(opened["resize"], b'{"Width":101,"Height":37}\n')
        wait_until(lambda: (101, 37) in [made.size for made in engine.execs.values()])
        client.send(opened["stdin"], b"\n")
        client.read_to_end()
        [made] = engine.execs.values()

        assert client.received[opened["stdout"]] == b"37 101\r\n"
        assert made.body["Tty"] is True
        assert str(made.body["DetachKeys"]).startswith("ctrl-@,")
        assert len(str(made.body["DetachKeys"]).split(",")) > 10


@pytest.mark.parametrize("version", [(1, 41), (1, 42)], ids=["resized", "from the start"])
def test_the_terminal_starts_with_its_known_size(
    rt: Runtime, engine: FakeEngine, container: ContainerId, version: tuple[int, int]
) -> None:
    engine.version = version
    engine.script_exec(ExecScript(prints_size=True))
    asked = task(container_id=container, cmd=("sh",), stdin=True, stderr=False, tty=True)
    with (
        engine.held("create_exec") as gate,
        client_of(rt, asked, "error", "stdin", "stdout", "resize") as (client, opened),
    ):
        client.send(opened["resize"], b'{"Width":101,"Height":37}\n')
        client.ping()
        engine.release(gate)
        if version < (1, 42):
            wait_until(lambda: "resize_exec" in [method for method, _ in engine.calls])
        client.send(opened["stdin"], b"\n")
        client.read_to_end()

        assert client.received[opened["stdout"]] == b"37 101\r\n"
    assert ("resize_exec" in [method for method, _ in engine.calls]) == (version < (1, 42))


def test_a_failure_of_docker_is_reported(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    engine.fail_next("start_exec", ShimError("exec: no space left"))
    asked = task(container_id=container, cmd=("x",))
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        client.read_to_end()
        reported = status(client, opened["error"])

        assert (reported["reason"], reported["message"]) == ("InternalError", "exec: no space left")


def test_an_exception_before_the_process_is_reported(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    engine.fail_next("create_exec", OSError(errno.EMFILE, "Too many open files"))
    asked = task(container_id=container, cmd=("x",))
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        client.read_to_end()
        reported = status(client, opened["error"])

        assert (reported["status"], reported["message"]) == (
            "Failure",
            "exec: unexpected OSError, see the log of the server",
        )


@pytest.mark.parametrize("failing", ["stdin", "resize"])
def test_an_exception_during_the_process_kills_it_and_is_reported(
    rt: Runtime, engine: FakeEngine, container: ContainerId, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_thread_for(failing, monkeypatch)
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        engine.script_exec(ExecScript(endless=True, pid=sleeper.pid))
        asked = task(container_id=container, cmd=("x",), stdin=True, stderr=False, tty=True)
        with client_of(rt, asked, "error", "stdin", "stdout", "resize") as (client, opened):
            client.read_to_end()

            assert sleeper.wait(SECONDS) == -9
            assert status(client, opened["error"])["status"] == "Failure"


@pytest.mark.parametrize("when", ["begun", "writing"])
def test_the_process_is_killed_when_the_client_disconnects(
    rt: Runtime, engine: FakeEngine, container: ContainerId, when: str
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        frames = [(1, os.urandom(65536))] * (200 if when == "writing" else 1)
        engine.script_exec(ExecScript(frames=frames, endless=True, pid=sleeper.pid))
        asked = task(container_id=container, cmd=("x",), stdin=True)
        with client_of(rt, asked, "error", "stdin", "stdout", "stderr") as (client, opened):
            while opened["stdout"] not in client.received:
                client.read_some()
            client.socket.close()
            assert sleeper.wait(SECONDS) == -9


def test_a_process_that_starts_after_its_client_disconnected_is_killed(
    rt: Runtime, engine: FakeEngine, container: ContainerId
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        engine.script_exec(ExecScript(endless=True, pid=sleeper.pid))
        with (
            engine.held("start_exec") as gate,
            client_of(rt, task(container_id=container, cmd=("x",)), "error", "stdout", "stderr") as (client, _),
        ):
            gate.wait_entered()
            client.socket.close()
        assert sleeper.poll() is None
        (exec_id,) = engine.execs
        with engine.start_exec(exec_id):  # Docker starts the exec, whose caller is gone
            assert sleeper.wait(SECONDS) == -9


def test_exec_ends_with_its_container(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    engine.script_exec(ExecScript(frames=[(1, b"up")], endless=True))
    asked = task(container_id=container, cmd=("x",))
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        while opened["stdout"] not in client.received:
            client.read_some()
        engine.exit_container(container)
        client.read_to_end()

        assert b'"137"' in client.received[opened["error"]]


def test_exec_runs_on_in_an_uninspectable_container(
    rt: Runtime, engine: FakeEngine, container: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.streaming.session.TICK", 0.02)
    engine.script_exec(ExecScript(echo=True))
    asked = task(container_id=container, cmd=("sh",), stdin=True)
    with client_of(rt, asked, "error", "stdin", "stdout", "stderr") as (client, opened):
        client.send(opened["stdin"], b"one ")
        while opened["stdout"] not in client.received:
            client.read_some()
        make_unknown(rt, engine, container)
        threading.Event().wait(0.5)  # many checks
        client.send(opened["stdin"], b"two", fin=True)
        client.read_to_end()

        assert client.received[opened["stdout"]] == b"one two"
        assert status(client, opened["error"])["status"] == "Success"


def test_a_slow_client_gets_all_output_of_an_exec_whose_container_exited(
    rt: Runtime, engine: FakeEngine, container: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.streaming.session.TICK", 0.2)
    engine.script_exec(ExecScript(frames=[(1, bytes(65536))] * KEPT, endless=True))
    asked = task(container_id=container, cmd=("x",))
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        while opened["stdout"] not in client.received:
            client.read_some()
        engine.exit_container(container)
        wait_until(lambda: not rt.view.container(container).state.running)
        threading.Event().wait(1.0)  # some checks
        client.read_to_end()

        assert len(client.received[opened["stdout"]]) == KEPT * 65536
        assert b'"137"' in client.received[opened["error"]]


def all_taken(engine: FakeEngine) -> bool:
    """Return whether all output of an exec has been read from Docker."""
    [made] = engine.execs.values()
    return made.taken == len(made.script.frames)


@pytest.mark.parametrize("whose", ["container", "exec", "exec that docker does not answer for"])
def test_output_is_read_after_the_exit_of_the_process_for_any_client(
    rt: Runtime, engine: FakeEngine, container: ContainerId, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.streaming.session.TICK", 1000.0)
    monkeypatch.setattr(container_exec, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(container_exec, "ANSWER_SECONDS", 0.05)
    with subprocess.Popen(["sleep", "1000"]) as process, ExitStack() as ending:
        if whose == "container":
            engine.containers[container].pid = process.pid
            rt.view.refresh_container(container)
        pid = process.pid if whose == "exec" else 0
        engine.script_exec(ExecScript(frames=[(1, bytes(65536))] * KEPT, endless=True, exit_code=3, pid=pid))
        gate = ending.enter_context(engine.held("inspect_exec")) if "answer" in whose else None
        asked = task(container_id=container, cmd=("x",))
        client, opened = ending.enter_context(client_of(rt, asked, "error", "stdout", "stderr"))
        while opened["stdout"] not in client.received:
            client.read_some()
        if gate is None:
            wait_until(lambda: whose == "container" or "inspect_exec" in [method for method, _ in engine.calls])
            assert not all_taken(engine)
            process.kill()
        wait_until(lambda: all_taken(engine))
        if gate is not None:
            engine.release(gate)
            process.kill()
        engine.exit_exec(next(iter(engine.execs)), exit_code=3)
        client.read_to_end()

        assert len(client.received[opened["stdout"]]) == KEPT * 65536
        assert b'"3"' in client.received[opened["error"]]


def test_output_that_waits_for_a_slow_client_is_bounded(
    rt: Runtime, engine: FakeEngine, container: ContainerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.streaming.session.TICK", 0.02)
    monkeypatch.setattr(container_exec, "LOOK_SECONDS", 1000.0)
    # So much that the client, which reads again below, cannot take all before the backlog is full.
    engine.script_exec(ExecScript(frames=[(1, bytes(65536))] * 2000, endless=True))
    asked = task(container_id=container, cmd=("x",))
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        while opened["stdout"] not in client.received:
            client.read_some()
        engine.exit_container(container)
        # The session has timed out, and checks the exit of the command.
        wait_until(lambda: "inspect_exec" in [method for method, _ in engine.calls])
        client.read_to_end()

        assert "there is no room for more" in str(status(client, opened["error"])["message"])


@pytest.mark.parametrize("reads_on", [True, False])
def test_an_attach_client_that_blocks_its_container_loses_its_session(
    rt: Runtime, engine: FakeEngine, container: ContainerId, reads_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(stream_sessions, "REASON_SECONDS", 1000.0 if reads_on else 0.1)
    engine.containers[container].output = [(1, bytes(65536))] * 200
    asked = task(kind=Kind.ATTACH, container_id=container)
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, opened):
        wait_until(lambda: engine.attachments and not engine.containers[container].attached)
        if reads_on:
            client.read_to_end()
            assert "the container could not go on" in str(status(client, opened["error"])["message"])
        else:
            wait_until(lambda: SERVING not in [thread.name for thread in threading.enumerate()])
    assert engine.inspect_container(container).state.running


def test_attach_connects_to_the_containers_process(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    asked = task(kind=Kind.ATTACH, container_id=container, stdin=True)
    with client_of(rt, asked, "error", "stdin", "stdout", "stderr") as (client, opened):
        client.send(opened["stdin"], b"typed", fin=True)
        client.read_to_end()

        assert client.received[opened["stdout"]] == b"typed"
        assert status(client, opened["error"])["status"] == "Success"
    [(_, options)] = engine.attachments
    assert (options.stdin, options.stdout, options.stderr, options.detach_keys) == (True, True, True, "")


def test_an_attach_client_that_disconnects_leaves_the_container_running(
    rt: Runtime, engine: FakeEngine, container: ContainerId
) -> None:
    asked = task(kind=Kind.ATTACH, container_id=container)
    with client_of(rt, asked, "error", "stdout", "stderr") as (client, _):
        wait_until(lambda: engine.attachments)
        client.socket.close()

    assert engine.inspect_container(container).state.running


def test_urls_are_returned_for_running_containers_and_pods(rt: Runtime, container: ContainerId) -> None:
    sandbox = rt.view.container(container).sandbox_id

    assert "/exec/" in exec_url(rt, request=pb.ExecRequest(container_id=container, cmd=["x"], stdout=True))
    assert "/attach/" in attach_url(rt, request=pb.AttachRequest(container_id=container, stdout=True))
    assert "/portforward/" in port_forward_url(rt, request=pb.PortForwardRequest(pod_sandbox_id=sandbox))


def test_no_urls_are_returned_for_stopped_containers_and_pods(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    idle = created(rt, sandbox)
    with pytest.raises(FailedPrecondition, match="is not running"):
        exec_url(rt, request=pb.ExecRequest(container_id=idle, cmd=["x"], stdout=True))
    with pytest.raises(FailedPrecondition, match="is not running"):
        attach_url(rt, request=pb.AttachRequest(container_id=idle, stdout=True))
    stop_pod_sandbox(rt, sandbox_id=sandbox)
    with pytest.raises(FailedPrecondition, match="not ready"):
        port_forward_url(rt, request=pb.PortForwardRequest(pod_sandbox_id=sandbox))
