# ruff: noqa: N802 - gRPC names the methods
"""Spans of RPCs arrive at a real collector: a server of OpenTelemetry's gRPC service in this process."""

import queue
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as collected
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as collecting
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.base import meter
from shim.base.meter import Kind
from shim.config.model import Config
from shim.cri import tracing as module
from shim.cri.server import CriServer
from shim.cri.tracing import tracing
from shim.domain.errors import NotFound

SECONDS = 60
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(collecting.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: queue.SimpleQueue[tuple[Resource, Span]] = queue.SimpleQueue()

    def Export(
        self, request: collected.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> collected.ExportTraceServiceResponse:
        for of_resource in request.resource_spans:
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    self.spans.put((of_resource.resource, span))
        return collected.ExportTraceServiceResponse()

    def span(self, name: str) -> Span:
        while True:
            _, span = self.spans.get(timeout=SECONDS)
            if span.name == name:
                return span


class Runtime(api.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        meter.report(Kind.DOCKER, "info", "NotFound", seconds=0.5)
        meter.report(Kind.CNI, "bridge", "ADD", "ok", seconds=0.25)
        return pb.VersionResponse()

    def StopContainer(
        self, request: pb.StopContainerRequest, context: grpc.ServicerContext
    ) -> pb.StopContainerResponse:
        raise NotFound("there is no such container")


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    with ThreadPoolExecutor() as threads:
        server, collector = grpc.server(threads), Collector()
        collecting.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call] # generated
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield collector, f"http://127.0.0.1:{port}"
        server.stop(None).wait()


def traced(config: Config, directory: Path, *, metadata: tuple[tuple[str, str], ...] = ()) -> None:
    """Serve, and call Version and a StopContainer that fails."""
    with tracing(config, environ={}) as interceptors:
        server = CriServer(
            endpoint=f"unix://{directory}/s",
            runtime=Runtime(),
            image=api.ImageServiceServicer(),
            environ={},
            interceptors=interceptors,
        )
        server.start()
        with grpc.insecure_channel(f"unix:{directory}/s") as channel:
            runtime = api.RuntimeServiceStub(channel)
            runtime.Version(pb.VersionRequest(), timeout=SECONDS, metadata=metadata)
            with pytest.raises(grpc.RpcError) as caught:
                runtime.StopContainer(pb.StopContainerRequest(), timeout=SECONDS, metadata=metadata)
        server.stop()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "there is no such container"


def code_of(span: Span) -> int:
    """The gRPC code of an RPC. OpenTelemetry counts codes as errors of the server if the client did not cause them."""
    [code] = [each.value.int_value for each in span.attributes if each.key == "rpc.grpc.status_code"]
    return code


def test_an_rpc_is_part_of_the_clients_trace(collector: tuple[Collector, str], tmp_path: Path) -> None:
    spans, endpoint = collector

    traced(Config(tracing_endpoint=endpoint), tmp_path, metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"),))

    docker, cni = spans.span("docker info"), spans.span("cni ADD bridge")
    rpc = spans.span("/runtime.v1.RuntimeService/Version")
    failed = spans.span("/runtime.v1.RuntimeService/StopContainer")
    assert {span.trace_id.hex() for span in (docker, cni, rpc, failed)} == {TRACE}
    assert [span.parent_span_id.hex() for span in (rpc, failed)] == [PARENT] * 2
    assert [span.parent_span_id for span in (docker, cni)] == [rpc.span_id] * 2
    assert [code_of(span) for span in (rpc, failed)] == [0, grpc.StatusCode.NOT_FOUND.value[0]]
    assert [span.status.code for span in (docker, cni)] == [Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET]
    assert docker.end_time_unix_nano - docker.start_time_unix_nano == pytest.approx(5e8, rel=0.01)


def test_a_client_that_does_not_trace_is_sampled(collector: tuple[Collector, str], tmp_path: Path) -> None:
    spans, endpoint = collector
    config = Config(tracing_endpoint=endpoint)

    traced(config, tmp_path)
    assert spans.spans.empty()

    traced(msgspec.structs.replace(config, tracing_sampling_rate_per_million=1_000_000), tmp_path)
    resource, _ = spans.spans.get(timeout=SECONDS)
    assert "pydockershim" in [attribute.value.string_value for attribute in resource.attributes]


def test_an_unreachable_collector_fails_no_rpc(tmp_path: Path) -> None:
    config = Config(tracing_endpoint="http://127.0.0.1:9", tracing_sampling_rate_per_million=1_000_000)

    traced(config, tmp_path)


@pytest.mark.parametrize(
    ("library", "variable"),
    [("opentelemetry.sdk.trace", ""), ("", "OTEL_BSP_MAX_QUEUE_SIZE")],
    ids=["library", "value"],
)
def test_tracing_that_cannot_begin_keeps_no_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, library: str, variable: str
) -> None:
    if library:
        monkeypatch.setitem(sys.modules, library, None)
    if variable:
        monkeypatch.setenv(variable, "-1")

    with capture_logs() as logs, tracing(Config(tracing_endpoint="http://c:1"), environ={}) as interceptors:
        assert list(interceptors) == []
    assert [line["event"] for line in logs] == ["tracing is off"]


def test_libraries_of_the_administrator_come_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "LIBRARIES", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    with tracing(Config(tracing_endpoint="http://c:1"), environ={}):
        assert sys.path[-1] == str(tmp_path)


def test_without_an_endpoint_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with tracing(Config(), environ={}) as interceptors:
        assert list(interceptors) == []
