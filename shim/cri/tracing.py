"""Sends OpenTelemetry traces of RPCs to a collector (OTLP over gRPC). Off unless an endpoint is set.

If the kubelet traces too (its `tracing` configuration), the span of an RPC is a child of the kubelet's span. Calls to
Docker and runs of CNI plugins are children of the RPC's span. The libraries are optional: `pydockershim[tracing]`.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc
import structlog

from shim import __version__
from shim.base import meter
from shim.base.meter import Kind, Measurement
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition

Interceptors = Sequence[grpc.ServerInterceptor]

_CHILDREN = {
    Kind.DOCKER: ("docker {0}", ("docker.operation", "result")),
    Kind.CNI: ("cni {1} {0}", ("cni.plugin", "cni.verb", "result")),
}
"""A format of the span's name, filled from the labels of a measurement, and the attribute names of those labels."""
_NAME = "OTEL_SERVICE_NAME"
_SHUTDOWN_SECONDS = 1.0
"""Limit for sending the last spans when the server stops."""

log = structlog.get_logger(__name__)


@contextmanager
def tracing(config: Config, *, environ: Mapping[str, str]) -> Iterator[Interceptors]:
    """Trace RPCs inside the block; yield the interceptors that trace, none without an endpoint.

    The library reads the standard OTEL_* variables that no setting covers: headers, TLS, batches, attributes. Raise
    FailedPrecondition if the libraries are not installed.
    """
    if not config.tracing_endpoint:
        yield []
        return
    try:
        # Imported on demand: the libraries are optional and take tens of MiB.
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.instrumentation.grpc import server_interceptor  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415
    except ImportError as error:
        raise FailedPrecondition(
            f"tracing_endpoint {config.tracing_endpoint}: {error}; "
            "install pydockershim[tracing] into the environment of the server, or remove the setting"
        ) from error

    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: environ.get(_NAME, "pydockershim"), SERVICE_VERSION: __version__}),
        sampler=ParentBasedTraceIdRatio(config.tracing_sampling_rate_per_million / 1e6),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=config.tracing_endpoint)))
    tracer = provider.get_tracer("pydockershim", __version__)

    def add_child(sample: Measurement) -> None:
        if sample.kind not in _CHILDREN or not trace.get_current_span().is_recording():
            return
        name, keys = _CHILDREN[sample.kind]
        ended = time.time_ns()
        span = tracer.start_span(
            name.format(*sample.labels),
            start_time=ended - int(sample.seconds * 1e9),
            attributes=dict(zip(keys, sample.labels, strict=True)),
        )
        if sample.labels[-1] != "ok":
            span.set_status(trace.StatusCode.ERROR, sample.labels[-1])
        span.end(ended)

    log.info("tracing", endpoint=config.tracing_endpoint)
    try:
        with meter.subscribed(add_child):
            yield [server_interceptor(tracer_provider=provider)]  # type: ignore[no-untyped-call] # has no types
    finally:
        # A collector that does not answer must not delay a restart.
        ending = threading.Thread(target=provider.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_SECONDS)
