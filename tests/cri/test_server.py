# ruff: noqa: N802 - gRPC names the methods
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.base import deadline
from shim.cri import server as module
from shim.cri.admission import Admission
from shim.cri.rpcs import LIMITS, Kind
from shim.cri.server import CriServer
from shim.cri.workers import READY
from shim.domain.errors import FailedPrecondition, InvalidArgument
from tests.cri.conftest import SECONDS, Serve, Served
from tests.threads import no_thread_for

if TYPE_CHECKING:
    from grpc import _CallFuture  # has no public name


HELD_SECONDS = 240.0
"""Limit for a call that waits until the test has made others; a thousand calls take a minute on a busy machine."""


class Runtime(api.RuntimeServiceServicer):
    """Version answers at once; StopContainer when the test allows it, or its client goes away."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()
        self._wake = (lambda: None) if stubborn else self.leave.set

    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        return pb.VersionResponse(version=request.version, runtime_name="pydockershim")

    def StopContainer(
        self, request: pb.StopContainerRequest, context: grpc.ServicerContext
    ) -> pb.StopContainerResponse:
        scope = deadline.current()
        with scope.on_cancel(self._wake):
            self.entered.release()
            assert self.leave.wait(HELD_SECONDS)
        scope.check("stop")
        return pb.StopContainerResponse()

    def RunPodSandbox(
        self, request: pb.RunPodSandboxRequest, context: grpc.ServicerContext
    ) -> pb.RunPodSandboxResponse:
        self.StopContainer(pb.StopContainerRequest(), context)
        return pb.RunPodSandboxResponse(pod_sandbox_id="p")

    def GetContainerEvents(
        self, request: pb.GetEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ContainerEventResponse]:
        yield pb.ContainerEventResponse(container_id="first")
        self.StopContainer(pb.StopContainerRequest(), context)


class Image(api.ImageServiceServicer):
    def ListImages(self, request: pb.ListImagesRequest, context: grpc.ServicerContext) -> pb.ListImagesResponse:
        return pb.ListImagesResponse(images=[pb.Image(id=request.filter.image.image)])


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


def stopping(at: api.RuntimeServiceStub, runtime: Runtime) -> "_CallFuture[pb.StopContainerResponse]":
    call = at.StopContainer.future(pb.StopContainerRequest(container_id="c"), timeout=HELD_SECONDS)
    assert runtime.entered.acquire(timeout=SECONDS)
    return call


def test_both_services_answer_on_one_private_socket(serve: Serve, tmp_path: Path, runtime: Runtime) -> None:
    at = serve(runtime, Image(), path=tmp_path / "deep" / "er" / "cri.sock")

    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"
    assert len(at.image.ListImages(pb.ListImagesRequest()).images) == 1
    assert stat.S_IMODE(at.path.stat().st_mode) == 0o600
    assert list(at.path.parent.iterdir()) == [at.path]


def test_a_path_may_hold_any_character(serve: Serve, tmp_path: Path, runtime: Runtime) -> None:
    at = serve(runtime, path=tmp_path / "a b%20c" / "cri.sock")

    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"


def test_a_stale_socket_is_replaced(serve: Serve, tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "cri.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    at = serve(runtime)

    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"


def test_a_second_server_is_refused_and_the_first_keeps_serving(serve: Serve, runtime: Runtime) -> None:
    at = serve(runtime)

    with pytest.raises(FailedPrecondition, match=f"{at.path}: another server answers there"):
        serve(Runtime())

    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.write_text("precious"), id="file"),
        pytest.param(lambda path: path.mkdir(), id="directory"),
        pytest.param(lambda path: path.symlink_to("/nowhere"), id="symlink"),
    ],
)
def test_a_file_that_is_not_a_socket_is_never_deleted(
    serve: Serve, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "cri.sock"
    make(path)

    with pytest.raises(FailedPrecondition, match="is not a socket"):
        serve()

    assert os.path.lexists(path)


def test_a_socket_of_another_kind_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))

        with pytest.raises(FailedPrecondition, match="is it in use"):
            serve()

    assert path.exists()


def test_a_socket_path_that_is_too_long_is_refused(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="at most 107 bytes"):
        serve(path=tmp_path / ("x" * 120))


def test_a_directory_that_cannot_be_made_is_reported(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(FailedPrecondition, match=r"serve the CRI at .*not a directory"):
        serve(path=tmp_path / "file" / "below" / "cri.sock")


def test_messages_of_sixty_mebibytes_pass_both_ways(serve: Serve) -> None:
    at = serve(image=Image())
    large = "x" * (60 << 20)

    request = pb.ListImagesRequest(filter=pb.ImageFilter(image=pb.ImageSpec(image=large)))

    assert at.image.ListImages(request).images[0].id == large


def test_a_message_of_more_than_64_mebibytes_is_refused(serve: Serve) -> None:
    at = serve(image=Image())
    request = pb.ListImagesRequest(filter=pb.ImageFilter(image=pb.ImageSpec(image="x" * (64 << 20))))

    with (
        grpc.insecure_channel(
            f"unix://{at.path}", options=[(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        ) as channel,
        pytest.raises(grpc.RpcError, match="larger than max") as refused,
    ):
        api.ImageServiceStub(channel).ListImages(request, timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_rpcs_of_all_kinds_together_are_limited(
    serve: Serve, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.cri.server.MAX_RPCS", 2)
    at = serve(runtime)
    calls = [stopping(at.runtime, runtime) for _ in range(2)]

    with pytest.raises(grpc.RpcError) as refused:
        at.runtime.Version(pb.VersionRequest(), timeout=SECONDS)
    runtime.leave.set()

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [call.result() for call in calls] == [pb.StopContainerResponse()] * 2


def test_many_slow_stops_do_not_delay_others(serve: Serve, runtime: Runtime) -> None:
    at = serve(runtime)
    calls = [stopping(at.runtime, runtime) for _ in range(64)]

    assert at.runtime.Version(pb.VersionRequest(version="v1"), timeout=SECONDS).version == "v1"

    runtime.leave.set()
    assert [call.result() for call in calls] == [pb.StopContainerResponse()] * 64


def test_rpcs_are_answered_again_after_a_lack_of_threads(
    serve: Serve, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = serve(runtime)
    calls = [stopping(at.runtime, runtime) for _ in range(READY)]
    with monkeypatch.context() as short:
        no_thread_for(f"cri_{READY}", short)
        waiting = at.runtime.Version.future(pb.VersionRequest(version="v1"), timeout=SECONDS)
        with pytest.raises(grpc.RpcError):  # a single worker would have sufficed
            at.runtime.Version(pb.VersionRequest(version="v2"), timeout=0.5)
    assert at.runtime.Version(pb.VersionRequest(version="v3"), timeout=SECONDS).version == "v3"
    assert waiting.result().version == "v1"

    runtime.leave.set()
    assert [call.result() for call in calls] == [pb.StopContainerResponse()] * READY


def test_a_server_that_gets_no_thread_does_not_start(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    no_thread_for("cri_0", monkeypatch)
    with pytest.raises(FailedPrecondition, match="can't start new thread"):
        serve()


def test_reads_are_answered_while_stops_use_up_their_limit(
    serve: Serve, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = serve(runtime, admission=Admission(limits={**LIMITS, Kind.TEARDOWN: 1}))
    call = stopping(at.runtime, runtime)

    with pytest.raises(grpc.RpcError) as caught:
        at.runtime.StopContainer(pb.StopContainerRequest())

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "StopContainer: 1 calls of the kind teardown are under way" in str(caught.value.details())
    assert at.runtime.Version(pb.VersionRequest(version="v1"), timeout=SECONDS).version == "v1"
    runtime.leave.set()
    call.result()


def test_reads_are_answered_while_all_stops_that_may_be_wait(serve: Serve, runtime: Runtime) -> None:
    at = serve(runtime)
    calls = [stopping(at.runtime, runtime) for _ in range(LIMITS[Kind.TEARDOWN])]

    assert at.runtime.Version(pb.VersionRequest(version="v1"), timeout=SECONDS).version == "v1"

    runtime.leave.set()
    assert [call.result() for call in calls] == [pb.StopContainerResponse()] * len(calls)


def test_a_stop_cancels_container_stops_and_answers_reads_until_the_end(serve: Serve, runtime: Runtime) -> None:
    at = serve(runtime)
    call = stopping(at.runtime, runtime)

    assert at.server.drain(grace=SECONDS)

    assert call.code() is grpc.StatusCode.UNAVAILABLE
    assert "the server is stopping" in call.details()
    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"
    assert at.path.exists()


def test_event_streams_end_with_the_socket(serve: Serve, runtime: Runtime) -> None:
    """A kubelet that is refused subscribes again at once, and after five refusals never again."""
    at = serve(runtime)
    begun = [at.runtime.GetContainerEvents(pb.GetEventsRequest(), timeout=SECONDS)]
    assert next(begun[0]).container_id == "first"

    assert at.server.drain(grace=SECONDS)

    begun.append(at.runtime.GetContainerEvents(pb.GetEventsRequest(), timeout=SECONDS))
    assert next(begun[1]).container_id == "first"
    assert begun[0].is_active()
    assert at.server.stop()
    assert not at.path.exists()
    assert [events.code() for events in begun] == [grpc.StatusCode.UNAVAILABLE] * 2


def test_a_stop_finishes_sandboxes_in_progress_and_admits_none(serve: Serve, runtime: Runtime) -> None:
    at = serve(runtime)
    call = at.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(), timeout=SECONDS)
    assert runtime.entered.acquire(timeout=SECONDS)
    drained = threading.Thread(target=at.server.drain, kwargs={"grace": SECONDS})
    drained.start()

    assert refusal_of_a_stop(at) == (grpc.StatusCode.UNAVAILABLE, False)
    assert drained.is_alive()
    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"
    runtime.leave.set()
    assert call.result() == pb.RunPodSandboxResponse(pod_sandbox_id="p")
    drained.join(SECONDS)
    assert not drained.is_alive()


def refusal_of_a_stop(at: Served) -> tuple[grpc.StatusCode, bool]:
    """Call StopContainer until a call is refused; return its code, and whether its handler ran."""
    while True:
        call = at.runtime.StopContainer.future(pb.StopContainerRequest(container_id="c"), timeout=0.1)
        if call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return call.code(), "the server is stopping" not in str(call.details())


def test_a_sandbox_is_cancelled_at_the_end_of_the_grace_period(serve: Serve, runtime: Runtime) -> None:
    at = serve(runtime)
    call = at.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(), timeout=SECONDS)
    assert runtime.entered.acquire(timeout=SECONDS)

    assert at.server.drain(grace=0.05)

    assert call.code() is grpc.StatusCode.UNAVAILABLE


def test_a_cancelled_rpc_has_time_to_end(serve: Serve) -> None:
    """Such as a start that Docker has begun: interrupted, the container would run unknown to the kubelet."""
    stubborn = Runtime(stubborn=True)
    at = serve(stubborn)
    call = stopping(at.runtime, stubborn)
    drained = threading.Thread(target=at.server.drain, kwargs={"grace": SECONDS})
    drained.start()
    drained.join(1.5)
    assert drained.is_alive()
    assert at.runtime.Version(pb.VersionRequest(version="v1")).version == "v1"

    stubborn.leave.set()

    drained.join(SECONDS)
    assert not drained.is_alive()
    assert call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("ask", "clean"), [("StopContainer", True), ("RunPodSandbox", False)])
def test_only_an_unfinished_sandbox_makes_a_drain_fail(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, ask: str, clean: bool
) -> None:
    monkeypatch.setattr(module, "_CANCEL_SECONDS", 0.1)
    stubborn = Runtime(stubborn=True)
    at = serve(stubborn)
    request = {"StopContainer": pb.StopContainerRequest(), "RunPodSandbox": pb.RunPodSandboxRequest()}[ask]
    call = getattr(at.runtime, ask).future(request, timeout=SECONDS)
    assert stubborn.entered.acquire(timeout=SECONDS)

    assert at.server.drain(grace=0.1) == clean

    stubborn.leave.set()
    assert call.code() is grpc.StatusCode.UNAVAILABLE


def test_a_silent_client_does_not_delay_the_stop(serve: Serve) -> None:
    at = serve()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(at.path))
        stopped = threading.Thread(target=at.server.stop)
        stopped.start()

        stopped.join(SECONDS)
        assert not stopped.is_alive()


def test_a_stop_leaves_the_socket_of_a_successor(serve: Serve, tmp_path: Path) -> None:
    at = serve()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(tmp_path / "next"))
        (tmp_path / "next").rename(at.path)

        at.server.stop()

    assert at.path.exists()


def test_a_server_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    server = CriServer(
        endpoint=f"unix://{tmp_path}/cri.sock",
        runtime=api.RuntimeServiceServicer(),
        image=api.ImageServiceServicer(),
        environ={},
    )

    assert server.stop()
