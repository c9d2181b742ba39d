"""Serves port-forward: each connection has a data stream and an error stream.

Over SPDY the client opens any number of such pairs, each with a request id. Over WebSocket channels there is a pair for
each port of the request. Source: `k8s.io/kubelet/pkg/cri/streaming/portforward` and the traffic of its clients.
"""

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from shim.base.process import ProcessHandle
from shim.domain.errors import Cancelled, ShimError
from shim.streaming.channel import Channel
from shim.streaming.relay import Ending, Link, Relay
from shim.streaming.session import Session
from shim.streaming.spdy import Headers

SPDY_PROTOCOLS = ("portforward.k8s.io",)
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
WEBSOCKET_PROTOCOLS = (TUNNEL_PROTOCOL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io")

Dial = Callable[[int], socket.socket]
"""Connects to a port of the pod; raises ShimError if that fails."""

MAX_CONNECTIONS = 500
"""Maximum connections of a session, including pending dials, because a reset of the streams does not end a dial."""

MAX_STREAMS = 2 * MAX_CONNECTIONS + 2
"""Two per connection, and another pair, so that a connection beyond the limit is refused with a reason."""

MAX_DIALS = 16
"""Maximum concurrent dials of a session, each in a thread."""

ENDED_SECONDS = 10.0
"""How long connections stay open after their pod has ended, so that clients can read data in flight. Open connections
keep the pod's network namespace."""

_DATA, _ERROR = "data", "error"

log = structlog.get_logger(__name__)


def channel_headers(ports: tuple[int, ...]) -> dict[int, Headers]:
    """Return the WebSocket channels for `ports`, with the headers that their SPDY streams would have."""
    return {
        2 * index + which: (("streamtype", kind), ("port", str(port)), ("requestid", str(index)))
        for index, port in enumerate(ports)
        for which, kind in enumerate((_DATA, _ERROR))
    }


def channel_greetings(ports: tuple[int, ...]) -> dict[int, bytes]:
    """Return the first message of each WebSocket channel, which is its port, little-endian."""
    return {2 * index + which: port.to_bytes(2, "little") for index, port in enumerate(ports) for which in (0, 1)}


@dataclass(slots=True)
class _Half:
    """The first stream of a pair whose second stream is not open yet."""

    channel: Channel
    kind: str
    port: int
    since: float


def forward(session: Session, *, dial: Dial, seconds: float, pause: ProcessHandle | None = None) -> None:
    """Serve connections until the client disconnects. Reset a stream if its pair is incomplete after `seconds`.

    All connections end ENDED_SECONDS after the process `pause`, even if the client has not read everything.

    With WebSocket channels the client cannot open or end single streams. Then, as in the kubelet's server, the session
    ends once the pod has closed all connections.
    """
    forwarder = _Forwarder(session, dial=dial, seconds=seconds)
    try:
        if pause is not None:
            session.when_ended(pause, forwarder.pod_ended)
        forwarder.run()
    finally:
        forwarder.close()


class _Forwarder:
    """Pairs the streams of a session, dials the pod, and passes the connections to a relay."""

    def __init__(self, session: Session, *, dial: Dial, seconds: float) -> None:
        self._session = session
        self._dial = dial
        self._seconds = seconds
        self._waiting: dict[str, _Half] = {}
        self._to_dial: deque[_Pair] = deque()
        self._dialling = 0
        self._dialled: deque[tuple[_Pair, socket.socket | None, str]] = deque()
        self._lock = threading.Lock()  # guards _dialled and _closed
        self._closed = False
        self._relay = Relay(session)
        self._until = math.inf

    def pod_ended(self) -> None:
        """Record that the pod has ended. Any thread may call this."""
        self._until = time.monotonic() + ENDED_SECONDS
        self._relay.wake()

    def run(self) -> None:
        """Serve until the session is over. Raise Cancelled if the client is gone."""
        while True:
            fixed = self._session.fixed  # read before the streams are taken, so that no stream can follow
            while (channel := self._session.next_channel(seconds=0)) is not None:
                self._drop_old()  # first, because a new stream may reuse the request id of an incomplete pair
                self._take(channel)
            self._drop_old()
            self._start_dials()
            self._take_dialled()
            if fixed and not (self._waiting or self._connections()):
                return
            left = self._until - time.monotonic()
            if left <= 0:
                return
            left = min(left, self._seconds) if self._waiting else left
            self._relay.wait(None if left == math.inf else left)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._closed = True
            left = list(self._dialled)
        self._relay.close()
        for pair, pod, _ in left:
            if pod is not None:
                pod.close()
            Ending(pair.data, pair.error).finish()
        for pair in self._to_dial:
            Ending(pair.data, pair.error).finish()

    def _connections(self) -> int:
        return len(self._relay) + self._dialling + len(self._to_dial)

    def _take(self, channel: Channel) -> None:
        half = _half(channel)
        if half is None:
            return
        request_id = channel.header("requestid")
        other = self._waiting.pop(request_id, None)
        if other is None:
            self._waiting[request_id] = half
        elif _match(half, other) and self._connections() < MAX_CONNECTIONS:
            data, error = (other, half) if half.kind == _ERROR else (half, other)
            error.channel.abandon()
            self._to_dial.append(_Pair(data.channel, error.channel, half.port))
        else:
            for wrong in (half, other):
                wrong.channel.reset()

    def _drop_old(self) -> None:
        for request_id, half in list(self._waiting.items()):
            if half.channel.was_reset or time.monotonic() - half.since > self._seconds:
                half.channel.reset()
                del self._waiting[request_id]

    def _start_dials(self) -> None:
        while self._to_dial and self._dialling < MAX_DIALS:
            pair = self._to_dial.popleft()
            if pair.data.was_reset:
                Ending(pair.data, pair.error).finish()
                continue
            try:
                threading.Thread(target=self._connect, args=(pair,), name="port-forward", daemon=True).start()
            except RuntimeError as error:  # no thread can be started
                self._fail(pair, str(error))
            else:
                self._dialling += 1

    def _connect(self, pair: "_Pair") -> None:
        """Dial in a new thread, and pass the result to the session's thread."""
        pod, why = None, ""
        try:
            pod = self._dial(pair.port)
        except Cancelled:
            log.debug("port-forward client disconnected during dial", port=pair.port)
        except (ShimError, OSError) as failure:
            why = str(failure)
        except Exception as fault:
            log.exception("port-forward failed", port=pair.port)
            why = f"unexpected {type(fault).__name__}, see the log of the server"
        with self._lock:
            if not self._closed:
                self._dialled.append((pair, pod, why))
                self._relay.wake()
            elif pod is not None:
                pod.close()

    def _take_dialled(self) -> None:
        while self._dialled:
            pair, pod, why = self._dialled.popleft()
            self._dialling -= 1
            if pod is None:
                self._fail(pair, why)
                continue
            self._relay.add(Link(pod, data=pair.data, error=pair.error, ends_with_pod=self._session.fixed))

    def _fail(self, pair: "_Pair", why: str) -> None:
        log.info("port-forward failed", port=pair.port, error=why)
        self._relay.end(Ending(pair.data, pair.error, why=why))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The streams of a connection."""

    data: Channel
    error: Channel
    port: int


def _match(half: _Half, other: _Half) -> bool:
    return half.port == other.port and {half.kind, other.kind} == {_DATA, _ERROR}


def _half(channel: Channel) -> _Half | None:
    kind, port = channel.header("streamtype"), channel.header("port")
    if kind not in {_DATA, _ERROR} or not channel.header("requestid") or not _is_port(port):
        channel.reset()
        return None
    channel.accept()
    return _Half(channel, kind, int(port), time.monotonic())


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16
