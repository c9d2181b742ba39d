"""Parses the HTTP request that opens a session, and builds the answer. No I/O; h11 parses the syntax.

A web page in a browser on this machine can reach a loopback port, also through an attacker's host name (DNS rebinding).
It cannot know a token, but its requests are refused even before the token is checked. Such a request has an Origin, or
a Host that does not name this server. Requests through the kubelet and the API server have the original client's Host,
and perhaps its Origin. But they also have X-Forwarded-For, which a page cannot set on an upgrade.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import h11
from wsproto.utilities import generate_accept_token

MAX_HEAD = 16 * 1024
"""Maximum bytes of a request's head."""

SPDY = "SPDY/3.1"
_WEBSOCKET_VERSION = "13"
_STREAM_PROTOCOL = "X-Stream-Protocol-Version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A complete request, and the bytes received after it."""

    method: str
    path: str
    """The path without the query."""
    headers: Sequence[tuple[str, str]]
    early: bytes

    def all(self, name: str) -> list[str]:
        """Return the elements of a list header, which may occur several times."""
        lines = [value for key, value in self.headers if key == name.lower()]
        return [part.strip() for line in lines for part in line.split(",") if part.strip()]

    def one(self, name: str) -> str:
        """Return the value of a header; empty if it is missing."""
        return next((value for key, value in self.headers if key == name.lower()), "")

    def names(self, name: str, token: str) -> bool:
        """Return whether a list header contains `token`, ignoring case."""
        return token.lower() in (part.lower() for part in self.all(name))


class Refused(Exception):
    """The request must be refused with an HTTP error."""

    def __init__(self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


class RequestReader:
    """Assembles a request from the received bytes."""

    def __init__(self) -> None:
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._head: h11.Request | None = None

    def receive(self, data: bytes) -> Request | None:
        """Return the request once it is complete, else None. Raise Refused if it is not HTTP or has a body.

        `b""` is EOF.
        """
        try:
            self._protocol.receive_data(data)
            while True:
                event = self._protocol.next_event()
                if isinstance(event, h11.Request):
                    self._head = event
                elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                    return self._request(self._head)
                elif isinstance(event, h11.Data):
                    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no body is expected")
                elif isinstance(event, h11.ConnectionClosed):
                    raise Refused(HTTPStatus.BAD_REQUEST, "the request is not complete")
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise Refused(HTTPStatus(error.error_status_hint), f"not an HTTP/1.1 request: {error}") from error

    def _request(self, head: h11.Request) -> Request:
        return Request(
            method=head.method.decode("ascii"),
            path=head.target.decode("latin-1").partition("?")[0],
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers],
            early=self._protocol.trailing_data[0],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """The protocols to which the connection switches."""

    websocket: bool
    protocol: str
    """The stream protocol; empty if the client did not request a protocol."""
    answer: bytes


def check_origin(request: Request, *, hosts: frozenset[str]) -> None:
    """Raise Refused for a request from a web page. `hosts` are the valid Host values of direct clients."""
    if request.all("x-forwarded-for"):
        return
    if request.one("origin"):
        raise Refused(HTTPStatus.FORBIDDEN, "requests of web pages are not served")
    if request.one("host").lower() not in hosts:
        raise Refused(HTTPStatus.FORBIDDEN, "the Host header names another server")


def upgrade_of(request: Request, *, spdy: Sequence[str], websocket: Sequence[str]) -> Upgrade:
    """Choose the upgrade and the stream protocol that the client requests. Raise Refused if none is served."""
    wanted = request.all("upgrade")
    if not wanted or not request.names("connection", "upgrade"):
        raise _upgrade_required("this address is for streaming and must be upgraded")
    if request.names("upgrade", SPDY):
        return _spdy(request, served=spdy)
    if request.names("upgrade", "websocket"):
        return _websocket(request, served=websocket)
    raise _upgrade_required(f"cannot upgrade to {wanted[0][:40]!r}")


def _upgrade_required(reason: str) -> Refused:
    return Refused(HTTPStatus.UPGRADE_REQUIRED, reason, {"Upgrade": f"{SPDY}, websocket"})


def _spdy(request: Request, *, served: Sequence[str]) -> Upgrade:
    if request.method not in {"GET", "POST"}:
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and POST are served", {"Allow": "GET, POST"})
    protocol = _common(request.all(_STREAM_PROTOCOL), served, header=f"X-Accepted-{_STREAM_PROTOCOL[2:]}s")
    headers = {"Upgrade": SPDY, "Connection": "Upgrade"}
    if protocol:
        headers[_STREAM_PROTOCOL] = protocol
    return Upgrade(websocket=False, protocol=protocol, answer=_head(HTTPStatus.SWITCHING_PROTOCOLS, headers))


def _websocket(request: Request, *, served: Sequence[str]) -> Upgrade:
    if request.method != "GET":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "WebSocket begins with a GET", {"Allow": "GET"})
    key = request.one("sec-websocket-key").encode("latin-1")
    if not _is_key(key):
        raise Refused(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is missing or malformed")
    if request.one("sec-websocket-version") != _WEBSOCKET_VERSION:
        headers = {"Sec-WebSocket-Version": _WEBSOCKET_VERSION}
        raise Refused(HTTPStatus.UPGRADE_REQUIRED, "the WebSocket version must be 13", headers)
    protocol = _common(request.all("sec-websocket-protocol"), served, header="Sec-WebSocket-Protocol")
    answer = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": generate_accept_token(key).decode("ascii"),
    }
    if protocol:
        answer["Sec-WebSocket-Protocol"] = protocol
    return Upgrade(websocket=True, protocol=protocol, answer=_head(HTTPStatus.SWITCHING_PROTOCOLS, answer))


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


def _common(offered: Sequence[str], served: Sequence[str], *, header: str) -> str:
    """Return the client's first protocol that is served; "" if it requests none, as the oldest clients do."""
    if not offered:
        return ""
    for protocol in offered:
        if protocol in served:
            return protocol
    raise Refused(HTTPStatus.FORBIDDEN, "none of the stream protocols is served", {header: ", ".join(served)})


def refusal_bytes(refused: Refused) -> bytes:
    """Return the HTTP response for a refused request."""
    body = f"{refused}\n".encode(errors="replace")
    headers = {
        **refused.headers,
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(body)),
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
    }
    return _head(refused.status, headers) + body


def _head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
