"""Sends OpenTelemetry traces of RPCs to a collector (OTLP over gRPC). Off unless an endpoint is set.

If the kubelet traces too (its `tracing` configuration), the span of an RPC is a child of the kubelet's span. Calls to
Docker and runs of CNI plugins are children of the RPC's span. The libraries are optional: `pydockershim[tracing]`.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from shim import __version__
from shim.base import meter
from shim.base.meter import Kind, Measurement
from shim.config.model import Config

Interceptors = Sequence[grpc.ServerInterceptor]

_CHILDREN = {
    Kind.DOCKER: ("docker {0}", ("docker.operation", "result")),
    Kind.CNI: ("cni {1} {0}", ("cni.plugin", "cni.verb", "result")),
}
"""A format of the span's name, filled from the labels of a measurement, and the attribute names of those labels."""
_NAME = "OTEL_SERVICE_NAME"
LIBRARIES = Path("/usr/local/lib/pydockershim-tracing")
"""Where an administrator can install the libraries beside a package or the single file, whose Python is isolated."""
_SHUTDOWN_SECONDS = 1.0
"""Limit for sending the last spans when the server stops."""

log = structlog.get_logger(__name__)


@contextmanager
def tracing(config: Config, *, environ: Mapping[str, str]) -> Iterator[Interceptors]:
    """Trace RPCs inside the block; yield the interceptors that trace, none without an endpoint.

    The library reads the standard variables OTEL_* that no setting covers: headers, TLS, batches, attributes. Where the
    libraries are missing, or refuse a value, the log says so, and nothing is traced.
    """
    if not config.tracing_endpoint:
        yield []
        return
    try:
        traced = _prepared(config, environ)
    except (ImportError, OSError, ValueError) as error:
        log.error("tracing is off", endpoint=config.tracing_endpoint, error=str(error))
        yield []
        return
    log.info("tracing", endpoint=config.tracing_endpoint)
    try:
        with meter.subscribed(traced.add_child):
            yield [traced.interceptor]
    finally:
        # A collector that does not answer must not delay a restart.
        ending = threading.Thread(target=traced.shut_down, name="tracing-end", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    interceptor: grpc.ServerInterceptor
    add_child: meter.Observer
    shut_down: Callable[[], None]


def _prepared(config: Config, environ: Mapping[str, str]) -> _Traced:
    """Load the libraries, which are optional and take tens of MiB. Raise ImportError, OSError, ValueError."""
    if LIBRARIES.is_dir():
        sys.path.append(str(LIBRARIES))  # the last, so that the libraries of the server go before
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.instrumentation.grpc import server_interceptor  # noqa: PLC0415
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415

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

    interceptor = server_interceptor(tracer_provider=provider)  # type: ignore[no-untyped-call] # has no types
    return _Traced(interceptor=interceptor, add_child=add_child, shut_down=provider.shutdown)
