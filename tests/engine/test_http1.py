from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.engine.http1 import MAX_HEAD, Body, ChunkedBody, Head, MalformedResponse, body_of, request_bytes, take_head

CHUNKED = Head(200, {"transfer-encoding": "chunked"})


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` at the given places."""
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


def read(body: Body, arriving: list[bytes]) -> tuple[bytes, bytes]:
    """Feed a body piece by piece; return its content and the rest of the buffer."""
    buffer, content = bytearray(), b""
    for piece in arriving:
        buffer += piece
        content += body.take(buffer)
    return content, bytes(buffer)


def test_a_request_has_a_length_and_a_host() -> None:
    raw = request_bytes("POST", "/v1.41/x", headers={"A": "b"}, body=b"{}")

    assert raw == b"POST /v1.41/x HTTP/1.1\r\nHost: docker\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(("method", "has"), [("POST", True), ("GET", False), ("DELETE", False)])
def test_an_empty_body_has_a_length_only_for_post(method: str, has: bool) -> None:
    assert (b"Content-Length: 0" in request_bytes(method, "/", headers={}, body=b"")) == has


@pytest.mark.parametrize(("target", "value"), [("/a\r\nX: y", "b"), ("/", "b\r\nX: y"), ("/", "b\nX: y")])
def test_line_breaks_in_a_request_are_refused(target: str, value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_bytes("GET", target, headers={"A": value}, body=b"")


def test_take_head_leaves_the_body_in_the_buffer() -> None:
    buffer = bytearray(b"HTTP/1.1 404 Not Found\r\nContent-Type: a: b\r\nX-Y:z\r\n\r\nrest")
    head = take_head(buffer)

    assert head == Head(404, {"content-type": "a: b", "x-y": "z"})
    assert buffer == b"rest"


def test_an_incomplete_head_stays_in_the_buffer() -> None:
    buffer = bytearray(b"HTTP/1.1 200 OK\r\nA: b\r\n\r")

    assert take_head(buffer) is None
    assert buffer.endswith(b"\r\n\r")


def test_interim_answers_are_skipped_but_not_an_upgrade() -> None:
    buffer = bytearray(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nearly")
    head = take_head(buffer)

    assert head is not None
    assert head.status == 101
    assert buffer == b"early"


@pytest.mark.parametrize(
    "line", [b"SSH-2.0-OpenSSH", b"HTTP/2 200 OK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1", b"\x15\x03\x01"]
)
def test_a_response_that_is_not_http_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedResponse, match="status line"):
        take_head(bytearray(line + b"\r\n\r\n"))


def test_a_head_without_end_is_refused() -> None:
    with pytest.raises(MalformedResponse, match="exceeds"):
        take_head(bytearray(b"HTTP/1.1 200 OK\r\nA: " + b"a" * MAX_HEAD))


@pytest.mark.parametrize(("value", "keep"), [("close", False), ("Close", False), ("keep-alive", True), ("", True)])
def test_only_connection_close_ends_the_connection(value: str, keep: bool) -> None:
    assert Head(200, {"connection": value}).keep_alive == keep


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", Head(200, {"content-length": "5"})),
        ("POST", Head(204, {})),
        ("POST", Head(304, {"content-length": "5"})),
        ("GET", Head(200, {"content-length": "0"})),
    ],
    ids=["head", "204", "304", "empty"],
)
def test_some_responses_have_no_body(method: str, head: Head) -> None:
    body = body_of(head, method=method)

    assert body.done
    assert read(body, [b"next"]) == (b"", b"next")


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 400)))
def test_a_sized_body_is_the_same_however_it_arrives(data: bytes, cuts: list[int]) -> None:
    body = body_of(Head(200, {"content-length": str(len(data))}), method="GET")

    assert read(body, pieces(data + b"next", cuts)) == (data, b"next")
    assert body.done


@given(data=st.lists(st.binary(min_size=1, max_size=40)), cuts=st.lists(st.integers(0, 900)), trailer=st.booleans())
def test_a_chunked_body_is_the_same_however_it_arrives(data: list[bytes], cuts: list[int], trailer: bool) -> None:
    wire = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in data)
    wire += b"0\r\n" + (b"A: b\r\n" if trailer else b"") + b"\r\n"
    body = body_of(CHUNKED, method="GET")

    assert read(body, pieces(wire + b"next", cuts)) == (b"".join(data), b"next")
    assert body.done
    body.end()


@pytest.mark.parametrize("wire", [b"4\r\nab", b"4\r\nabcd\r\n", b"0\r\n", b"", b"4"])
def test_an_incomplete_chunked_body_is_refused(wire: bytes) -> None:
    body = body_of(CHUNKED, method="GET")
    read(body, [wire])

    with pytest.raises(MalformedResponse, match="middle"):
        body.end()


@pytest.mark.parametrize("line", [b"x\r\n", b"\r\n", b"-1\r\n", b"0x4\r\n", b"1_0\r\n", b"f" * 16 + b"\r\n"])
def test_a_wrong_chunk_size_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedResponse, match="chunk size"):
        read(body_of(CHUNKED, method="GET"), [line])


def test_a_chunk_size_line_without_end_is_refused() -> None:
    with pytest.raises(MalformedResponse, match="without end"):
        read(body_of(CHUNKED, method="GET"), [b"1" * 2000])


def test_an_incomplete_sized_body_is_refused() -> None:
    body = body_of(Head(200, {"content-length": "5"}), method="GET")
    read(body, [b"abcd"])

    with pytest.raises(MalformedResponse, match="middle"):
        body.end()


def test_a_body_without_length_ends_with_the_connection() -> None:
    body = body_of(Head(200, {}), method="GET")

    assert read(body, [b"ab", b"cd"]) == (b"abcd", b"")
    assert not body.done
    body.end()
    assert body.done


@pytest.mark.parametrize("length", ["-1", "five", "1e3", ""])
def test_a_wrong_length_is_refused(length: str) -> None:
    with pytest.raises(MalformedResponse, match="length"):
        body_of(Head(200, {"content-length": length}), method="GET")


def test_an_oversized_complete_head_is_refused() -> None:
    buffer = bytearray(b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD + b"\r\n\r\n")
    with pytest.raises(MalformedResponse, match="head exceeds"):
        take_head(buffer)


def test_a_trailer_without_end_is_refused() -> None:
    body = ChunkedBody()
    with pytest.raises(MalformedResponse, match="trailer exceeds"):
        body.take(bytearray(b"0\r\n" + b"name: value\r\n" * 10_000))


@pytest.mark.parametrize("length", ["9" * 5000, "", "-1", "\u00b2"])
def test_a_content_length_that_is_no_number_is_refused(length: str) -> None:
    with pytest.raises(MalformedResponse, match="not a content length"):
        body_of(Head(200, {"content-length": length}), method="GET")
