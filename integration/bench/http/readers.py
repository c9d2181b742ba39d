"""The two readers; each performs an exchange without a socket."""

from collections.abc import Iterator

import h11

from integration.bench.http.responses import Exchange
from shim.engine import http1

HEADERS = {"User-Agent": "pydockershim/0.1.0"}
_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}


def _headers(exchange: Exchange) -> dict[str, str]:
    return {**HEADERS, **_UPGRADE} if exchange.upgrades else HEADERS


class OwnReader:
    """`shim.engine.http1`, used as `shim.engine.connection` uses it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def pieces(self, exchange: Exchange) -> Iterator[bytes]:
        """Yield the body of the response, or the bytes after an upgrade."""
        arriving = iter(exchange.arriving)
        buffer = self._buffer
        http1.request_bytes(exchange.method, exchange.target, headers=_headers(exchange), body=exchange.body)
        while (head := http1.take_head(buffer)) is None:
            buffer += next(arriving)
        if head.status == 101:
            yield bytes(buffer)
            buffer.clear()
            return
        body = http1.body_of(head, method=exchange.method)
        while not body.done:
            if piece := body.take(buffer):
                yield piece
            elif not body.done:
                buffer += next(arriving)


class H11Reader:
    """h11, with a connection object for each connection, as its documentation recommends."""

    def __init__(self) -> None:
        self._connection = _h11_connection()

    def pieces(self, exchange: Exchange) -> Iterator[bytes]:
        """Yield the body of the response, or the bytes after an upgrade."""
        arriving = iter(exchange.arriving)
        self._send(exchange)
        while True:
            event = self._connection.next_event()
            if event is h11.NEED_DATA:
                self._connection.receive_data(next(arriving))
            elif isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                early, _ = self._connection.trailing_data
                self._connection = _h11_connection()
                yield early
                return
            elif isinstance(event, h11.EndOfMessage):
                self._connection.start_next_cycle()
                return

    def _send(self, exchange: Exchange) -> None:
        lines = [("Host", "docker"), *_headers(exchange).items()]
        if exchange.body or exchange.method == "POST":
            lines.append(("Content-Length", str(len(exchange.body))))
        self._connection.send(h11.Request(method=exchange.method, target=exchange.target, headers=lines))
        if exchange.body:
            self._connection.send(h11.Data(data=exchange.body))
        self._connection.send(h11.EndOfMessage())


def _h11_connection() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=http1.MAX_HEAD)
