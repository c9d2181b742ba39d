# ruff: noqa: N802 - gRPC names the methods
import io
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import structlog

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.base import deadline
from shim.base.meter import Measurement, subscribed
from shim.domain import errors
from tests.cri.conftest import SECONDS, Serve, client


class Runtime(api.RuntimeServiceServicer):
    """Runs the test's functions in Version, RunPodSandbox and StreamContainers."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        self._work()
        return pb.VersionResponse(version="v1")

    def RunPodSandbox(
        self, request: pb.RunPodSandboxRequest, context: grpc.ServicerContext
    ) -> pb.RunPodSandboxResponse:
        self._work()
        return pb.RunPodSandboxResponse(pod_sandbox_id="5a4d")

    def StreamContainers(
        self, request: pb.StreamContainersRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StreamContainersResponse]:
        for _ in range(3):
            yield pb.StreamContainersResponse(containers=[pb.Container(id=str(self._work()))])


def raising(failure: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise failure

    return work


def lines(out: io.StringIO, method: str) -> list[dict[str, Any]]:
    """Return the log lines of an RPC; wait for the last line, which may come after the answer."""
    every = [json.loads(line) for line in out.getvalue().splitlines()]
    return [line for line in every if line.get("method") == method]


POD = pb.RunPodSandboxRequest(
    config=pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="web", namespace="shop", uid="u"))
)


def test_an_error_of_the_domain_becomes_its_status(serve: Serve) -> None:
    at = serve(Runtime(raising(errors.NotFound("pod sandbox 5a4d does not exist"))))

    with pytest.raises(grpc.RpcError) as caught:
        at.runtime.Version(pb.VersionRequest())

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "pod sandbox 5a4d does not exist"


def test_an_unexpected_exception_ends_its_rpc_and_is_logged(serve: Serve, out: io.StringIO) -> None:
    failures: list[BaseException] = [KeyError("hunter2")]
    at = serve(Runtime(lambda: raising(failures.pop())() if failures else None))

    with pytest.raises(grpc.RpcError) as caught:
        at.runtime.RunPodSandbox(POD)

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "unexpected KeyError, see the log of the server"
    [line] = lines(out, "RunPodSandbox")
    assert (line["level"], line["code"]) == ("error", "INTERNAL")
    assert "KeyError: 'hunter2'" in line["exception"]
    assert at.runtime.RunPodSandbox(POD).pod_sandbox_id == "5a4d"


def test_a_change_is_logged_with_the_names_of_its_subject(serve: Serve, out: io.StringIO) -> None:
    known = {"c1": {"name": "app", "pod": "shop/web"}, "s1": {"pod": "shop/web"}}
    at = serve(names_of=lambda container_id: known.get(container_id, {}))

    for call in (
        lambda: at.runtime.StopContainer(pb.StopContainerRequest(container_id="c1")),
        lambda: at.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id="s1")),
        lambda: at.runtime.RemoveContainer(pb.RemoveContainerRequest(container_id="c2")),
    ):
        with pytest.raises(grpc.RpcError):
            call()

    named = [
        (line["container"], line.get("pod"), line.get("name"))
        for method in ("StopContainer", "RemoveContainer")
        for line in lines(out, method)
    ]
    assert named == [("c1", "shop/web", "app"), ("c2", None, None)]
    assert [(line["sandbox"], line["pod"]) for line in lines(out, "StopPodSandbox")] == [("s1", "shop/web")]


def test_a_malformed_request_ends_only_its_rpc(serve: Serve) -> None:
    at = serve(Runtime(lambda: None))
    with client(at.path) as channel:
        raw: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        with pytest.raises(grpc.RpcError) as caught:
            raw(b"\xff\xff\xff", timeout=SECONDS)

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert at.runtime.Version(pb.VersionRequest()).version == "v1"


def test_a_very_long_message_of_many_lines_arrives(serve: Serve) -> None:
    at = serve(Runtime(raising(errors.ShimError("plugin said:\n" + "é" * 50_000 + "\0 end"))))

    with pytest.raises(grpc.RpcError) as caught:
        at.runtime.Version(pb.VersionRequest())

    details = caught.value.details() or ""
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert details.startswith("plugin said: é")
    assert details.endswith("é end")


@pytest.mark.parametrize("service", ["runtime", "image"])
def test_every_rpc_without_an_implementation_is_refused_by_name(serve: Serve, service: str) -> None:
    at = serve()
    stub = getattr(at, service)
    name = {"runtime": "RuntimeService", "image": "ImageService"}[service]

    for method in pb.DESCRIPTOR.services_by_name[name].methods:
        request = getattr(pb, method.input_type.name)()
        with pytest.raises(grpc.RpcError) as caught:
            list(getattr(stub, method.name)(request))

        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert caught.value.details() == f"{method.name} is not implemented"


def test_a_not_implemented_error_of_a_verb_is_internal(serve: Serve) -> None:
    at = serve(Runtime(raising(NotImplementedError())))

    with pytest.raises(grpc.RpcError) as caught:
        at.runtime.Version(pb.VersionRequest())

    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_the_deadline_of_the_client_is_the_scope_of_the_work(serve: Serve) -> None:
    left: list[float | None] = []
    at = serve(Runtime(lambda: left.append(deadline.current().remaining())))

    at.runtime.Version(pb.VersionRequest(), timeout=500)
    at.runtime.Version(pb.VersionRequest())

    assert left[0] is not None
    assert 400 < left[0] < 600  # gRPC rounds up
    assert left[1] is None


def test_a_client_that_goes_away_wakes_the_work(serve: Serve) -> None:
    entered, cancelled = threading.Event(), threading.Event()

    def work() -> None:
        with deadline.current().on_cancel(cancelled.set):
            entered.set()
            assert cancelled.wait(SECONDS)

    call = serve(Runtime(work)).runtime.Version.future(pb.VersionRequest())
    assert entered.wait(SECONDS)

    call.cancel()

    assert cancelled.wait(SECONDS)


def test_a_streaming_answer_keeps_its_scope_from_item_to_item(serve: Serve, out: io.StringIO) -> None:
    scopes: list[deadline.Scope] = []

    def work() -> None:
        scopes.append(deadline.current())
        structlog.get_logger("domain").info("item")

    at = serve(Runtime(work))

    assert len(list(at.runtime.StreamContainers(pb.StreamContainersRequest()))) == 3
    assert scopes[0] is scopes[1] is scopes[2]
    assert scopes[0] is not deadline.current()
    written = lines(out, "StreamContainers")
    assert len({line["request"] for line in written}) == 1


def test_a_streaming_answer_that_fails_half_way_gives_the_status(serve: Serve) -> None:
    todo = [errors.Unavailable("docker went away"), None]

    def work() -> None:
        failure = todo.pop()
        if failure:
            raise failure

    answers = serve(Runtime(work)).runtime.StreamContainers(pb.StreamContainersRequest())

    assert next(answers)
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_client_that_leaves_a_streaming_answer_wakes_it(serve: Serve) -> None:
    entered, cancelled = threading.Event(), threading.Event()
    todo = iter([False, True])

    def work() -> None:
        if next(todo):
            with deadline.current().on_cancel(cancelled.set):
                entered.set()
                assert cancelled.wait(SECONDS)

    answers = serve(Runtime(work)).runtime.StreamContainers(pb.StreamContainersRequest())
    next(answers)
    assert entered.wait(SECONDS)

    answers.cancel()

    assert cancelled.wait(SECONDS)


def test_a_change_is_logged_with_its_subject(serve: Serve, out: io.StringIO) -> None:
    at = serve(Runtime(lambda: structlog.get_logger("domain").info("working")))

    at.runtime.RunPodSandbox(POD)
    at.server.stop()

    working, answered = lines(out, "RunPodSandbox")
    assert working["request"] == answered["request"]
    assert working["pod"] == "shop/web"
    assert (answered["event"], answered["level"], answered["sandbox"]) == ("answered", "info", "5a4d")
    assert answered["ms"] >= 0


def test_unknown_fields_of_a_newer_client_are_logged_with_the_request(serve: Serve, out: io.StringIO) -> None:
    at = serve(Runtime(lambda: None))
    newer = pb.RunPodSandboxRequest.FromString(POD.SerializeToString() + b"\x98\x06\x01")  # an integer with number 99

    at.runtime.RunPodSandbox(newer)
    at.runtime.RunPodSandbox(newer)

    [line] = [line for line in lines(out, "RunPodSandbox") if "field" in line]
    assert (line["level"], line["field"], line["pod"]) == ("warning", "RunPodSandboxRequest.99", "shop/web")


@pytest.mark.parametrize(
    ("failure", "level"),
    [
        pytest.param(None, "debug", id="answered"),
        pytest.param(errors.NotFound("gone"), "debug", id="not-found"),
        pytest.param(errors.Unavailable("docker is away"), "debug", id="docker-away"),
        pytest.param(errors.InvalidArgument("bad"), "error", id="bad-request"),
    ],
)
def test_reads_are_not_logged(serve: Serve, out: io.StringIO, failure: Exception | None, level: str) -> None:
    at = serve(Runtime(raising(failure) if failure else lambda: None))

    with pytest.raises(grpc.RpcError) if failure else pytest.MonkeyPatch.context():
        at.runtime.Version(pb.VersionRequest())
    at.server.stop()

    [line] = lines(out, "Version")
    assert line["level"] == level


def test_a_failed_change_is_an_error_in_the_log(serve: Serve, out: io.StringIO) -> None:
    at = serve(Runtime(raising(errors.Unavailable("docker is away"))))

    with pytest.raises(grpc.RpcError):
        at.runtime.RunPodSandbox(POD)

    [line] = lines(out, "RunPodSandbox")
    assert (line["level"], line["code"], line["error"]) == ("error", "UNAVAILABLE", "docker is away")


def test_each_rpc_is_reported_with_its_code(serve: Serve) -> None:
    heard: queue.SimpleQueue[Measurement] = queue.SimpleQueue()
    failures: list[BaseException] = [errors.NotFound("no such pod"), errors.Unavailable("no docker")]
    at = serve(Runtime(lambda: raising(failures.pop())() if failures else None))

    with subscribed(heard.put):
        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                at.runtime.Version(pb.VersionRequest())
        list(at.runtime.StreamContainers(pb.StreamContainersRequest()))
        with pytest.raises(grpc.RpcError):
            at.runtime.Status(pb.StatusRequest())
        reported = [heard.get(timeout=SECONDS).labels for _ in range(4)]

    assert reported == [
        ("Version", "UNAVAILABLE"),
        ("Version", "NOT_FOUND"),
        ("StreamContainers", "OK"),
        ("Status", "UNIMPLEMENTED"),
    ]
