import itertools
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.streaming.http import (
    MAX_HEAD,
    Refused,
    Request,
    RequestReader,
    Upgrade,
    check_origin,
    refusal_bytes,
    upgrade_of,
)

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HOSTS = frozenset({"127.0.0.1:4242", "localhost:4242"})
SPDY = ("v4.channel.k8s.io", "channel.k8s.io")
WEBSOCKET = ("v5.channel.k8s.io", "v4.channel.k8s.io")


def head(method: str = "POST", **headers: str) -> bytes:
    lines = [f"{method} /exec/token?a=b HTTP/1.1", "Host: 127.0.0.1:4242"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def read(data: bytes) -> Request:
    request = RequestReader().receive(data)
    assert request is not None
    return request


def upgrade(data: bytes) -> Upgrade:
    return upgrade_of(read(data), spdy=SPDY, websocket=WEBSOCKET)


def refused(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        upgrade(data)
    return caught.value


def test_a_request_and_the_bytes_after_it_are_returned() -> None:
    request = read(head(Upgrade="SPDY/3.1", Connection="Upgrade") + b"\x80\x03early")

    assert (request.method, request.path, request.early) == ("POST", "/exec/token", b"\x80\x03early")


@given(cuts=st.lists(st.integers(0, 300), max_size=20))
def test_the_request_does_not_depend_on_how_the_bytes_are_split(cuts: list[int]) -> None:
    data = head(Upgrade="SPDY/3.1", Connection="Upgrade", X_Stream_Protocol_Version="v4.channel.k8s.io") + b"early"
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader, early, request = RequestReader(), b"", None
    for start, end in itertools.pairwise(at):
        piece = data[start:end]
        if request is not None:
            early += piece
        else:
            request = reader.receive(piece)

    assert request is not None
    assert (request.path, request.early + early) == ("/exec/token", b"early")


@given(data=st.binary(max_size=400))
def test_garbage_is_refused_or_incomplete(data: bytes) -> None:
    reader = RequestReader()
    refusals = []
    for piece in (data, b""):
        try:
            reader.receive(piece)
        except Refused as refusal:
            refusals.append(refusal_bytes(refusal))
            break

    assert all(answer.startswith(b"HTTP/1.1 4") for answer in refusals)


def test_an_endless_head_is_refused() -> None:
    reader = RequestReader()
    reader.receive(b"GET / HTTP/1.1\r\nHost: a\r\n")

    with pytest.raises(Refused) as caught:
        reader.receive(b"X: " + b"a" * 2 * MAX_HEAD)
    assert caught.value.status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


def test_a_body_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        RequestReader().receive(head(Content_Length="3") + b"abc")

    assert caught.value.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_spdy_selects_the_clients_first_protocol_that_is_served(method: str) -> None:
    asked = head(method, Connection="Upgrade", Upgrade="SPDY/3.1", X_Stream_Protocol_Version="v9.x, v4.channel.k8s.io")

    chosen = upgrade(asked)

    assert (chosen.websocket, chosen.protocol) == (False, "v4.channel.k8s.io")
    assert chosen.answer == (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n"
        b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    )


def test_several_lines_of_a_header_are_a_single_list() -> None:
    asked = head(Connection="keep-alive, Upgrade", Upgrade="spdy/3.1").replace(
        b"\r\n\r\n", b"\r\nX-Stream-Protocol-Version: v9\r\nX-Stream-Protocol-Version: channel.k8s.io\r\n\r\n"
    )

    assert upgrade(asked).protocol == "channel.k8s.io"


def test_spdy_without_a_protocol_is_accepted() -> None:
    assert upgrade(head(Connection="Upgrade", Upgrade="SPDY/3.1")).protocol == ""


def test_the_websocket_response_has_the_accept_token() -> None:
    chosen = upgrade(
        head(
            "GET",
            Connection="Upgrade",
            Upgrade="websocket",
            Sec_WebSocket_Key=KEY,
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Protocol="v5.channel.k8s.io, v4.channel.k8s.io",
        )
    )

    assert (chosen.websocket, chosen.protocol) == (True, "v5.channel.k8s.io")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in chosen.answer
    assert b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n" in chosen.answer


WS = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Key": KEY,
    "Sec_WebSocket_Version": "13",
}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head("GET"), HTTPStatus.UPGRADE_REQUIRED),
        (head("GET", Upgrade="SPDY/3.1"), HTTPStatus.UPGRADE_REQUIRED),
        (head("GET", Connection="Upgrade", Upgrade="h2c"), HTTPStatus.UPGRADE_REQUIRED),
        (head("PUT", Connection="Upgrade", Upgrade="SPDY/3.1"), HTTPStatus.METHOD_NOT_ALLOWED),
        (head("POST", **WS), HTTPStatus.METHOD_NOT_ALLOWED),
        (head("GET", **WS | {"Sec_WebSocket_Key": "short"}), HTTPStatus.BAD_REQUEST),
        (head("GET", **WS | {"Sec_WebSocket_Version": "8"}), HTTPStatus.UPGRADE_REQUIRED),
        (head("GET", **WS, Sec_WebSocket_Protocol="chat"), HTTPStatus.FORBIDDEN),
        (head(Connection="Upgrade", Upgrade="SPDY/3.1", X_Stream_Protocol_Version="v9"), HTTPStatus.FORBIDDEN),
    ],
    ids=["none", "not asked for", "unknown", "put", "post", "key", "version", "no subprotocol", "no protocol"],
)
def test_a_request_that_cannot_be_upgraded_is_refused(data: bytes, status: HTTPStatus) -> None:
    assert refused(data).status == status


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Host": "127.0.0.1:4242"}, True),
        ({"Host": "LOCALHOST:4242"}, True),
        ({"Host": "evil.example:4242"}, False),
        ({"Host": "127.0.0.1:4242", "Origin": "http://evil.example"}, False),
        ({"Host": "127.0.0.1:4242", "Origin": "http://127.0.0.1:4242"}, False),
        ({"Host": "api.example", "X-Forwarded-For": "10.0.0.1"}, True),
        ({"Host": "api.example", "X-Forwarded-For": "10.0.0.1", "Origin": "https://console.example"}, True),
    ],
    ids=["direct", "by name", "rebound", "page", "own page", "forwarded", "forwarded page"],
)
def test_requests_of_web_pages_are_refused(headers: dict[str, str], allowed: bool) -> None:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    request = read("\r\n".join(["GET /exec/t HTTP/1.1", *lines, "", ""]).encode())

    if allowed:
        check_origin(request, hosts=HOSTS)
    else:
        with pytest.raises(Refused) as caught:
            check_origin(request, hosts=HOSTS)
        assert caught.value.status == HTTPStatus.FORBIDDEN


def test_a_refusal_is_a_complete_response() -> None:
    answer = refusal_bytes(Refused(HTTPStatus.NOT_FOUND, "no such thing", {"X-Reason": "none"}))

    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\nX-Reason: none\r\n")
    assert answer.endswith(b"Connection: close\r\n\r\nno such thing\n")
    assert b"Content-Length: 14\r\n" in answer
