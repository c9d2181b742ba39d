"""Port-forward: pairs of streams, one with the bytes of a connection, one with what went wrong with it.

Over SPDY the client opens as many pairs as it likes, joined by a request id; over WebSocket channels there is one pair
for each port of the request. Source: `k8s.io/kubelet/pkg/cri/streaming/portforward` and its clients, as seen on the
wire.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from shim.errors import Cancelled, ShimError
from shim.streaming.channel import Channel
from shim.streaming.spdy import Headers
from shim.streaming.transport import Session

SPDY_PROTOCOLS = ("portforward.k8s.io",)
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
WEBSOCKET_PROTOCOLS = (TUNNEL_PROTOCOL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io")

Dial = Callable[[int], socket.socket]
"""Connect to a port of the pod; ShimError when that cannot be."""

MAX_CONNECTIONS = 500
"""Connections of one session at a time. Resetting its streams does not end one that is still being made."""

_DATA, _ERROR = "data", "error"
_PIECE = 64 * 1024

log = structlog.get_logger(__name__)


def channel_headers(ports: tuple[int, ...]) -> dict[int, Headers]:
    """Give the WebSocket channels of `ports`, with the headers SPDY would have."""
    return {
        2 * index + which: (("streamtype", kind), ("port", str(port)), ("requestid", str(index)))
        for index, port in enumerate(ports)
        for which, kind in enumerate((_DATA, _ERROR))
    }


def channel_greetings(ports: tuple[int, ...]) -> dict[int, bytes]:
    """Give the first message of each WebSocket channel: its port, low byte first."""
    return {2 * index + which: port.to_bytes(2, "little") for index, port in enumerate(ports) for which in (0, 1)}


@dataclass(slots=True)
class _Half:
    """A stream whose other one has not come yet."""

    channel: Channel
    kind: str
    port: int
    since: float


def forward(session: Session, *, dial: Dial, seconds: float) -> None:
    """Serve connections until the client has gone. The two streams of a pair must come within `seconds`."""
    waiting: dict[str, _Half] = {}
    slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
    while True:
        channel = session.next_channel(seconds=seconds if waiting else None)
        _drop_old(waiting, seconds)
        half = _half(channel) if channel is not None else None
        if half is None:
            continue
        request_id = half.channel.header("requestid")
        other = waiting.pop(request_id, None)
        if other is None:
            waiting[request_id] = half
        elif _fit(half, other) and slots.acquire(blocking=False):
            data, error = (other, half) if half.kind == _ERROR else (half, other)
            connection = _Connection(session, data=data.channel, error=error.channel)
            _start(connection, partial(dial, half.port), then=slots.release)
        else:
            for wrong in (half, other):
                wrong.channel.reset()


def _fit(one: _Half, other: _Half) -> bool:
    return one.port == other.port and {one.kind, other.kind} == {_DATA, _ERROR}


def _half(channel: Channel) -> _Half | None:
    kind, port = channel.header("streamtype"), channel.header("port")
    if kind not in {_DATA, _ERROR} or not channel.header("requestid") or not _is_port(port):
        channel.reset()
        return None
    channel.accept()
    return _Half(channel, kind, int(port), time.monotonic())


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16


def _drop_old(waiting: dict[str, _Half], seconds: float) -> None:
    for request_id, half in list(waiting.items()):
        if half.channel.was_reset or time.monotonic() - half.since > seconds:
            half.channel.reset()
            del waiting[request_id]


def _start(connection: "_Connection", connect: Callable[[], socket.socket], *, then: Callable[[], None]) -> None:
    def serve() -> None:
        try:
            connection.serve(connect)
        finally:
            then()

    try:
        threading.Thread(target=serve, name="port-forward", daemon=True).start()
    except RuntimeError as error:  # no thread is to be had
        then()
        connection.refuse(str(error))


class _Connection:
    """One connection to the pod and its pair of streams."""

    def __init__(self, session: Session, *, data: Channel, error: Channel) -> None:
        self._session = session
        self._data = data
        self._error = error

    def refuse(self, why: str) -> None:
        """Tell the client that there is no connection."""
        log.info("port-forward failed", error=why)
        self._error.abandon()
        self._tell(why)
        self._end()

    def serve(self, connect: Callable[[], socket.socket]) -> None:
        """Connect, and copy until both sides have ended."""
        self._error.abandon()
        try:
            self._serve(connect)
        except Cancelled:
            return
        except (ShimError, OSError) as failure:
            log.info("port-forward failed", error=failure)
            self._tell(str(failure))
        except Exception as fault:
            log.exception("port-forward failed")
            self._tell(f"unexpected {type(fault).__name__}, see the log of the shim")
        finally:
            self._end()

    def _end(self) -> None:
        for channel in (self._data, self._error):
            channel.abandon()
            channel.finish()

    def _serve(self, connect: Callable[[], socket.socket]) -> None:
        with connect() as pod, self._session.scope.on_cancel(lambda: _cut(pod)):
            # Nobody would hear what the pod still says, and it might never stop, or never speak again.
            self._data.when_reset(lambda: _cut(pod))
            upward = threading.Thread(target=self._copy_to, args=(pod,), name="port-forward in", daemon=True)
            upward.start()
            try:
                while piece := pod.recv(_PIECE):
                    self._data.write(piece)
                self._data.finish()
                # kubectl closes its user's connection, and ends the data it sends, after the end of this one.
                self._error.finish()
            except BaseException:
                # The other direction is of no use any more; it waits for the client, or for the pod.
                self._data.abandon()
                _cut(pod)
                raise
            finally:
                upward.join()

    def _copy_to(self, pod: socket.socket) -> None:
        with suppress(Cancelled):
            try:
                while piece := self._data.read():
                    pod.sendall(piece)
                pod.shutdown(socket.SHUT_WR)
            except OSError:
                # The pod has closed its reading side: what else it writes still counts.
                self._data.abandon()

    def _tell(self, message: str) -> None:
        with suppress(Cancelled):
            self._error.write(message.encode(errors="replace"))


def _cut(pod: socket.socket) -> None:
    with suppress(OSError):
        pod.shutdown(socket.SHUT_RDWR)
