"""The server's own metrics over HTTP: `/metrics` for Prometheus and `/healthz`. Off by default."""

import contextlib
import io
import ipaddress
import platform
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version as installed
from socketserver import TCPServer
from typing import Any

import structlog
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shim import __version__
from shim.api.v1 import CRI_VERSION
from shim.base import deadline, meter
from shim.base.meter import Kind, Measurement
from shim.daemon.shim_leaks import ShimLeaks
from shim.domain.errors import FailedPrecondition, reason_of
from shim.logs.interface import ContainerLogs
from shim.streaming.admission import FULL, Refusals
from shim.view.node_view import NodeView

_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Seconds, from a list out of memory to an image pull."""
_NAMES = {
    Kind.RPC: ("pydockershim_rpc", "RPCs: how many, and how long they took."),
    Kind.DOCKER: ("pydockershim_docker_call", "Calls to Docker: how many, and how long they took."),
    Kind.CNI: ("pydockershim_cni_run", "Runs of CNI plugins: how many, and how long they took."),
    Kind.NRI: ("pydockershim_nri_call", "Calls of NRI plugins: how many, and how long they took."),
    Kind.STREAM: (
        "pydockershim_stream",
        "Exec, attach and port-forward sessions: how many, and how long they took.",
    ),
    Kind.EXEC: (
        "pydockershim_exec_start",
        "Commands of exec, probes and hooks, and why Docker ran them: how many, and how long until they ran.",
    ),
}
REQUEST_SECONDS = 10.0
"""Seconds for a complete request to arrive, counted from the end of the previous request, and for a client to read the
answer."""
MAX_CONNECTIONS = 32
"""Open connections. A further connection replaces the oldest, preferably one without a request."""
_MOST_THREADS = 2 * MAX_CONNECTIONS
"""Includes the threads of connections that were closed and are about to end."""
_PAUSE_SECONDS = 0.1
"""Time until the next accept after a failed accept."""

log = structlog.get_logger(__name__)


class Counts:
    """Counters and histograms fed by `shim.base.meter`. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = {
            kind: Histogram(f"{name}_seconds", words, kind.value, buckets=_BUCKETS, registry=registry)
            for kind, (name, words) in _NAMES.items()
        }
        self._refused = Counter(
            "pydockershim_refused", "Connections refused: how many.", Kind.REFUSED.value, registry=registry
        )

    def observe(self, sample: Measurement) -> None:
        """Record a measurement."""
        if sample.kind is Kind.REFUSED:
            self._refused.labels(*sample.labels).inc()
        else:
            self._durations[sample.kind].labels(*sample.labels).observe(sample.seconds)


class ViewCollector(Collector):
    """Size and lag of the node view, read at each scrape."""

    def __init__(self, view: NodeView) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the view."""
        stats = self._view.stats()
        records = GaugeMetricFamily("pydockershim_view_records", "What the node view holds.", labels=["kind"])
        for kind in ("sandboxes", "containers", "images"):
            records.add_metric([kind], getattr(stats, kind))
        yield records
        yield GaugeMetricFamily("pydockershim_view_subscribers", "Streams of events.", value=stats.subscribers)
        yield GaugeMetricFamily("pydockershim_view_up", "1 while the view is fed by Docker.", value=not stats.outage)
        yield CounterMetricFamily("pydockershim_view_reconnects", "Times Docker was lost.", value=stats.reconnects)
        if stats.last_event_at:
            age = max(0.0, time.time() - stats.last_event_at / 1e9)
            yield GaugeMetricFamily("pydockershim_view_last_event_seconds", "Age of Docker's last event.", value=age)
        if stats.resync_seconds_ago is not None:
            yield GaugeMetricFamily(
                "pydockershim_view_compared_seconds",
                "Age of the last full compare with Docker.",
                value=stats.resync_seconds_ago,
            )


class LogCollector(Collector):
    """Throughput and lag of the log process, queried at each scrape."""

    def __init__(self, logs: ContainerLogs) -> None:
        self._logs = logs

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the log process."""
        stats = self._logs.stats()
        yield GaugeMetricFamily("pydockershim_logs_up", "1 while the log process answers.", value=bool(stats.figures))
        yield CounterMetricFamily("pydockershim_logs_restarts", "Times the log process ended.", value=stats.restarts)
        yield GaugeMetricFamily(
            "pydockershim_logs_held_back", "Containers whose end waits for their log.", value=stats.held_back
        )
        if (figures := stats.figures) is not None:
            yield GaugeMetricFamily("pydockershim_logs_followed", "Logs being written.", value=figures.followed)
            yield CounterMetricFamily("pydockershim_logs_lines", "Lines written since its start.", value=figures.lines)
            yield GaugeMetricFamily(
                "pydockershim_logs_behind_bytes", "Left to be copied in Docker's files.", value=figures.behind_bytes
            )
            yield GaugeMetricFamily(
                "pydockershim_logs_blocked", "Logs that cannot be written now.", value=figures.blocked_logs
            )


class ShimCollector(Collector):
    """Counts of leaked containerd-shims."""

    def __init__(self, leaks: ShimLeaks) -> None:
        self._leaks = leaks

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of leaked containerd-shims."""
        yield GaugeMetricFamily(
            "pydockershim_leaked_shims", "Shims left of removed containers, not ended.", value=self._leaks.left
        )
        yield CounterMetricFamily(
            "pydockershim_leaked_shims_ended", "Shims left of removed containers, ended.", value=self._leaks.ended
        )


class ServerCollector(Collector):
    """Versions and thread count. Memory, CPU time and open files come from ProcessCollector."""

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the server itself."""
        versions = {
            "version": __version__,
            "cri": CRI_VERSION,
            "python": platform.python_version(),
            "grpcio": installed("grpcio"),
        }
        yield InfoMetricFamily("pydockershim_build", "Versions of the server and of what it is built on.", versions)
        yield GaugeMetricFamily("pydockershim_threads", "Threads of the server.", value=threading.active_count())


class _Requests(io.RawIOBase):
    """The bytes of requests, with a deadline per request that a slow client cannot extend."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self._scope = deadline.Scope(seconds=REQUEST_SECONDS)

    def begin(self) -> None:
        """Start the deadline of the next request."""
        self._scope = deadline.Scope(seconds=REQUEST_SECONDS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._scope.remaining()
        if not left:
            raise TimeoutError("the request did not come in time")
        self._connected.settimeout(left)
        return self._connected.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests; one instance per connection."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        self._requests = _Requests(self.connection)
        self.rfile = io.BufferedReader(self._requests)

    def handle_one_request(self) -> None:
        self._requests.begin()
        super().handle_one_request()

    def parse_request(self) -> bool:
        # A GET has no body, so the request is complete.
        if not super().parse_request() or not self.server.serve_request(self.connection):
            self.close_connection = True
            return False
        self.connection.settimeout(REQUEST_SECONDS)
        return True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, generate_latest(self.server.registry), kind=CONTENT_TYPE_LATEST)
        elif path == "/healthz":
            outage = self.server.view.stats().outage
            status = HTTPStatus.SERVICE_UNAVAILABLE if outage else HTTPStatus.OK
            self._answer(status, (outage or "ok").encode() + b"\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics and /healthz\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
        log.debug("http", line=format % args)

    def _answer(self, status: HTTPStatus, body: bytes, *, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.await_request(self.connection)


class _Server(ThreadingHTTPServer):
    """An HTTP server with a bounded number of connections and threads, because any process of the node may connect."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], *, registry: CollectorRegistry, view: NodeView) -> None:
        self.registry = registry
        self.view = view
        self._starting = threading.BoundedSemaphore(_MOST_THREADS)
        self._places = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}  # for a request, oldest first
        self._serving: dict[socket.socket, None] = {}
        self._refusals = Refusals("metrics")
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer resolves its host name here, and the start would wait for the DNS.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no descriptor is free: the connection stays in the queue, and would be found again at once
            time.sleep(_PAUSE_SECONDS)
            raise

    def handle_error(self, _request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            log.debug("metrics client disconnected", client=client_address, error=error)
        else:
            log.error("failed to serve metrics", client=client_address, exc_info=error)

    def serve_request(self, connected: socket.socket) -> bool:
        """Mark a connection as serving; return False if it was closed to make room."""
        return self._move(connected, self._waiting, self._serving)

    def await_request(self, connected: socket.socket) -> None:
        """Mark a connection as waiting for a request."""
        self._move(connected, self._serving, self._waiting)

    def _move(self, connected: socket.socket, source: dict[socket.socket, None], to: dict[socket.socket, None]) -> bool:
        with self._places:
            if connected not in source:
                return False
            del source[connected]
            to[connected] = None
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        self._starting.acquire()  # brief: the limit on connections and the timeouts end threads
        self._make_place(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _make_place(self, connected: socket.socket) -> None:
        with self._places:
            full = len(self._waiting) + len(self._serving) >= MAX_CONNECTIONS
            if full:
                places = self._waiting or self._serving
                oldest = next(iter(places))
                del places[oldest]
                with contextlib.suppress(OSError):  # the client has closed it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._waiting[connected] = None
        if full:
            self._refusals.note(FULL, text=f"{MAX_CONNECTIONS} connections are open; the oldest ends")

    def _leave(self, connected: socket.socket) -> None:
        with self._places:
            self._waiting.pop(connected, None)
            self._serving.pop(connected, None)
        self._starting.release()


@contextlib.contextmanager
def telemetry(address: str, *, view: NodeView, logs: ContainerLogs, leaks: ShimLeaks) -> Iterator[int]:
    """Serve metrics at `host:port`, and count the server's work, inside the block. Yield the port.

    Raise FailedPrecondition if the address cannot be bound.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ServerCollector())
    registry.register(ViewCollector(view))
    registry.register(LogCollector(logs))
    registry.register(ShimCollector(leaks))
    counts = Counts(registry)
    host, _, port = address.rpartition(":")
    try:
        server = _Server((host.strip("[]"), int(port)), registry=registry, view=view)
    except OSError as error:
        raise FailedPrecondition(f"serve metrics at {address}: {reason_of(error)}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("serving metrics", address=address)
    if not ipaddress.ip_address(host.strip("[]")).is_loopback:
        log.warning("metrics are readable by anyone on the network", address=address)
    try:
        with meter.subscribed(counts.observe):
            yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
