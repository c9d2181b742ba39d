"""Reads while many StopContainer and ExecSync calls are pending."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from integration.bench.sick.figures import REFUSED_MS, Read, Waits, read_of
from integration.bench.timings import Timings
from integration.cri import Cri, connected
from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.server import Server
from shim.api.v1 import api_pb2 as pb

GRACE_SECONDS = 3600
TIMES = 300
"""Number of each read."""
PAUSE_SECONDS = 0.01
_CALL_SECONDS = REFUSED_MS / 1000
_TAKEN_SECONDS = 60.0
_SETTLE_SECONDS = 30.0
_STEADY_SECONDS = 5.0
_AGAIN_SECONDS = 2.0


@dataclass(slots=True)
class Waiting:
    """A call that should stay pending; a refused call is repeated, as a kubelet does."""

    make: "Callable[[], grpc.Future[Any]]"
    call: "grpc.Future[Any]"
    refused: int = 0

    def retry_if_refused(self) -> bool:
        """Repeat the call if it was refused, and return whether it was.

        Raises NodeError if it ended in any other way.
        """
        if not self.call.done():
            return False
        error = self.call.exception()
        if not isinstance(error, grpc.RpcError) or error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise NodeError(f"a call that should be pending has ended: {error or self.call.result()}")
        self.refused += 1
        self.call = self.make()
        return True


def reads_beside_waits(
    server: Server, engine: Engine, *, stopped: Sequence[str], executing: Sequence[str]
) -> tuple[Waits, list[Read]]:
    """Time reads while each of `stopped` is in its grace period and a command runs in each of `executing`.

    A container may be named several times. All calls have ended on return.
    """
    with connected(server.socket) as waiter, connected(server.socket) as reader:
        began = time.monotonic()
        execs = [_begun(partial(_exec, waiter, container)) for container in executing]
        stops = [_begun(partial(_stop, waiter, container)) for container in stopped]
        try:
            # The server takes the calls of a connection in order: this answer proves that all have arrived.
            waiter.runtime.Version(pb.VersionRequest(), timeout=_TAKEN_SECONDS)
            taken = time.monotonic() - began
            _settle([*execs, *stops])
            reads = _timed(reader, engine)
            waits = Waits(
                taken_seconds=taken,
                stops=_waiting(stops),
                stops_refused=sum(each.refused for each in stops),
                execs=_waiting(execs),
                execs_refused=sum(each.refused for each in execs),
            )
        finally:
            for each in (*execs, *stops):
                each.call.cancel()
        return waits, reads


def _begun(make: "Callable[[], grpc.Future[Any]]") -> Waiting:
    return Waiting(make, make())


def _exec(cri: Cri, container: str) -> "grpc.Future[Any]":
    request = pb.ExecSyncRequest(container_id=container, cmd=["sleep", "3600"], timeout=GRACE_SECONDS)
    call: grpc.Future[Any] = cri.runtime.ExecSync.future(request)
    return call


def _stop(cri: Cri, container: str) -> "grpc.Future[Any]":
    call: grpc.Future[Any] = cri.runtime.StopContainer.future(
        pb.StopContainerRequest(container_id=container, timeout=GRACE_SECONDS)
    )
    return call


def _settle(calls: Iterable[Waiting]) -> None:
    """Wait until no call was refused for a while, at most _SETTLE_SECONDS."""
    until = time.monotonic() + _SETTLE_SECONDS
    steady = time.monotonic()
    while time.monotonic() < min(until, steady + _STEADY_SECONDS):
        if sum(each.retry_if_refused() for each in calls):
            steady = time.monotonic()
        time.sleep(_AGAIN_SECONDS)


def _waiting(calls: Iterable[Waiting]) -> int:
    return sum(not each.call.done() for each in calls)


def _timed(cri: Cri, engine: Engine) -> list[Read]:
    timings, refused = Timings(), dict[str, int]()
    calls: dict[str, Callable[[], object]] = {
        "ListContainers": lambda: cri.runtime.ListContainers(pb.ListContainersRequest(), timeout=_CALL_SECONDS),
        "ListPodSandbox": lambda: cri.runtime.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=_CALL_SECONDS),
        "Status": lambda: cri.runtime.Status(pb.StatusRequest(), timeout=_CALL_SECONDS),
        "Version": lambda: cri.runtime.Version(pb.VersionRequest(), timeout=_CALL_SECONDS),
    }
    for number in range(TIMES):
        for name, call in calls.items():
            try:
                timings.call(name, call)
            except grpc.RpcError as error:
                refused[name] = refused.get(name, 0) + 1
                print(f"    {name} refused: {error.code().name} {error.details()}", flush=True)
        if number % 10 == 0:
            timings.call("floor: Docker's GET /containers/json", lambda: engine.api.containers(all=True))
        time.sleep(PAUSE_SECONDS)
    names = [*calls, "floor: Docker's GET /containers/json"]
    return [read_of(name, timings.took.get(name, ()), refused=refused.get(name, 0)) for name in names]
