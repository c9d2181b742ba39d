"""Time from the end of a server to the first answers of its successor, which starts after the exit."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import grpc

from integration.bench.sick.figures import FIRST, Restart
from integration.cri import Cri, connected
from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.server import Server
from integration.sessions import exec_session
from shim.api.v1 import api_pb2 as pb
from shim.api.v1.api_pb2_grpc import RuntimeServiceStub

EXIT_SECONDS = 30.0
_KILL_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""How long an answer or an exit is awaited."""
GRACE_SECONDS = 3600
_TRY_SECONDS = 0.01
_CALL_SECONDS = 2.0
_INSPECTS_AT_ONCE = 8

_CALLS: dict[str, Callable[[RuntimeServiceStub], object]] = {
    "Version": lambda runtime: runtime.Version(pb.VersionRequest(), timeout=_CALL_SECONDS),
    "Status": lambda runtime: runtime.Status(pb.StatusRequest(), timeout=_CALL_SECONDS),
    "ListPodSandbox": lambda runtime: runtime.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=_CALL_SECONDS),
}


def restarted(server: Server, *, by: signal.Signals) -> Restart:
    """End a server with a signal, start its successor and time the first answers.

    A server that does not exit is killed after EXIT_SECONDS, as systemd does.
    """
    began = time.monotonic()
    handle = os.pidfd_open(server.daemon.pid)
    try:
        server.daemon.signal(by)
        if not select.select([handle], [], [], EXIT_SECONDS)[0]:
            server.daemon.signal(signal.SIGKILL)
            select.select([handle], [], [], _KILL_SECONDS)
    finally:
        os.close(handle)
    if not server.daemon.wait_ended(1):
        raise NodeError(f"the server did not exit after SIGKILL\n{server.daemon.log_tail()}")
    exited = time.monotonic() - began
    server.socket.unlink(missing_ok=True)  # a dead server leaves its socket, which refuses connections
    server.daemon.spawn()
    return Restart(exit=exited, answers=_first_answers(server.socket, began))


def _first_answers(path: Path, began: float) -> dict[str, float]:
    """Poll until each call is answered; a call without answer gets the time waited."""
    answers: dict[str, float] = {}
    until = time.monotonic() + ANSWER_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(_TRY_SECONDS)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
    with grpc.insecure_channel(f"unix://{path}", options=options) as channel:
        runtime = RuntimeServiceStub(channel)
        while len(answers) < len(FIRST) and time.monotonic() < until:
            for name in FIRST:
                if name not in answers and _answered(_CALLS[name], runtime):
                    answers[name] = time.monotonic() - began
            time.sleep(_TRY_SECONDS)
    return {name: answers.get(name, time.monotonic() - began) for name in FIRST}


def _answered(call: Callable[[RuntimeServiceStub], object], runtime: RuntimeServiceStub) -> bool:
    try:
        call(runtime)
    except grpc.RpcError:
        return False
    return True


class PendingCalls:
    """Pending calls and sessions, which delay a stop of the server. Their results do not matter."""

    def __init__(self, socket: Path) -> None:
        self._stack = ExitStack()
        self._cri: Cri = self._stack.enter_context(connected(socket))
        self._calls: list[grpc.Future[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        self._stack.close()

    def pull(self, reference: str) -> None:
        """Pull an image."""
        request = pb.PullImageRequest(image=pb.ImageSpec(image=reference))
        self._calls.append(self._cri.images.PullImage.future(request))

    def stop(self, container: str) -> None:
        """Stop a container that ignores SIGTERM, with a grace period of an hour."""
        request = pb.StopContainerRequest(container_id=container, timeout=GRACE_SECONDS)
        self._calls.append(self._cri.runtime.StopContainer.future(request))

    def execs(self, containers: Sequence[str]) -> None:
        """Run a command in each container: half of them with ExecSync, half as `kubectl exec`."""
        half = len(containers) // 2
        for container in containers[:half]:
            request = pb.ExecSyncRequest(container_id=container, cmd=["sleep", "3600"], timeout=GRACE_SECONDS)
            self._calls.append(self._cri.runtime.ExecSync.future(request))
        for container in containers[half:]:
            self._stack.callback(exec_session(self._cri, container, "sleep", "3600").close)

    def check(self) -> None:
        """Raise NodeError if one of the calls has ended."""
        for call in self._calls:
            if call.done():
                raise NodeError(f"a call that should be pending has ended: {call.exception() or call.result()}")


def floor(engine: Engine) -> dict[str, float]:
    """Return the seconds of the work of every start: loading the program, and inspecting each container."""

    def imports() -> None:
        subprocess.run([sys.executable, "-c", "import shim.daemon.serve"], check=True)

    def inspects() -> None:
        rows = engine.api.containers(all=True)
        with ThreadPoolExecutor(_INSPECTS_AT_ONCE) as pool:
            list(pool.map(lambda row: engine.api.inspect_container(row["Id"]), rows))

    return {"Python loads the server": _seconds(imports), "Docker lists and inspects all": _seconds(inspects)}


def _seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began
