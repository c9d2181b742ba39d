"""Docker's answers: HTTP, JSON, streams."""

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from hypothesis import strategies as st

from shim.base import deadline
from shim.domain.errors import ShimError
from shim.engine import bounds
from shim.engine.bounds import RowTrimmer
from shim.engine.client import DockerEngine
from shim.engine.http1 import MalformedResponse, body_of, take_head
from shim.engine.stdcopy import Decoder, MalformedStream
from tests.fakes.http_unix import chunk, chunked, response
from tests.fuzz.target import NESTED, Run, Target, json_values, pure, shape

SECONDS = 5.0

LABELS = {"io.kubernetes.pod.name": "p", "annotation": "x" * 100}
INSPECT = {
    "Id": "c" * 64,
    "Name": "/k8s_c_p_n_u_0",
    "Created": "2026-11-21T02:32:06.1Z",
    "Image": "sha256:" + "a" * 64,
    "State": {"Status": "exited", "Running": False, "Pid": 7, "ExitCode": 1, "StartedAt": "2026-11-21T02:32:06Z"},
    "Config": {"Image": "i", "User": "0:0", "Labels": LABELS, "StopSignal": "SIGTERM"},
    "HostConfig": {"NetworkMode": "none", "CpuShares": 2, "PidsLimit": None, "LogConfig": {"Type": "json-file"}},
    "LogPath": "/l",
}
ROW = {"Id": "c", "Names": ["/k8s_c"], "ImageID": "sha256:a", "Created": 5, "State": "running", "Labels": LABELS}
IMAGE = {"Id": "sha256:a", "RepoTags": ["a:1"], "Size": 5, "Config": {"User": "1", "Env": ["A=b"]}, "RootFS": {}}
EVENT = {"Type": "container", "Action": "die", "Actor": {"ID": "c", "Attributes": LABELS}, "timeNano": 5}
PROGRESS = {"status": "Downloading", "id": "l", "progressDetail": {"current": 1}}
INFO = {"ID": "x", "Runtimes": {"runc": {"path": "runc", "status": {"a": "b"}}}, "DriverStatus": [["a", "b"]]}


def _take_all(data: bytes, *, cuts: int) -> tuple[object, bytes, bool]:
    """Read a response from pieces; return its head, its body and whether the body ended."""
    buffer, body, content = bytearray(), None, bytearray()
    head = None
    for at in range(0, len(data), cuts):
        buffer += data[at : at + cuts]
        if body is None:
            head = take_head(buffer)
            body = body_of(head, method="GET") if head else None
        if body is not None:
            while piece := body.take(buffer):
                content += piece
    return head, bytes(content), body is not None and body.done


def _http(data: bytes) -> None:
    def outcome(cuts: int) -> object:
        try:
            return _take_all(data, cuts=cuts)
        except MalformedResponse:
            return MalformedResponse

    whole = outcome(len(data) or 1)
    # A malformed part after a valid beginning is noticed earlier or later, depending on the pieces.
    for cuts in (1, 7) if len(data) < 4096 else (4096,):
        assert outcome(cuts) == whole or MalformedResponse in (whole, outcome(cuts))
    if whole is MalformedResponse:
        raise MalformedResponse


class _Engine:
    """A socket that answers every request with the fuzzer's bytes, except for a valid version."""

    def __init__(self, path: Path) -> None:
        self.answer = memoryview(b"")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(SECONDS)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        while request := self._request(connection):
            if request.startswith(b"GET /version"):
                connection.sendall(response(200, {"ApiVersion": "1.51", "MinAPIVersion": "1.24"}))
                continue
            connection.sendall(self.answer)
            return

    def _request(self, connection: socket.socket) -> bytes:
        received = b""
        while b"\r\n\r\n" not in received and (data := connection.recv(65536)):
            received += data
        return received

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def _events(engine: DockerEngine) -> None:
    with engine.events(since=None) as events:
        list(islice(events, 1000))


def _archive(engine: DockerEngine) -> None:
    with engine.archive("c", "/etc/passwd") as pieces:
        for _ in pieces:
            pass


CALLS: tuple[Callable[[DockerEngine], object], ...] = (
    lambda engine: engine.inspect_container("c"),
    lambda engine: engine.list_containers(),
    lambda engine: engine.inspect_image("a:1"),
    lambda engine: engine.list_images(),
    _events,
    lambda engine: engine.pull_image("a:1", auth=None, progress=lambda _: None),
    lambda engine: engine.info(),
    lambda engine: engine.create_container(name="n", body={}),
    lambda engine: engine.inspect_exec("e"),
    lambda engine: engine.stat_path("c", "/etc"),
    _archive,
    lambda engine: engine.stop_container("c", grace=1),
)
"""The calls; the first byte of an input selects one."""
ANSWERS: tuple[object, ...] = (
    INSPECT,
    [ROW, ROW],
    IMAGE,
    [IMAGE],
    EVENT,
    PROGRESS,
    INFO,
    {"Id": "c"},
    {"Running": True},
    {},
    {},
    {},
)


@contextmanager
def _adapter() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        server = _Engine(path)
        engine = DockerEngine(f"unix://{path}", request_timeout=SECONDS)

        def run(data: bytes) -> None:
            server.answer = memoryview(data)[1:]
            with deadline.bound(SECONDS):
                CALLS[data[0] % len(CALLS) if data else 0](engine)

        try:
            yield run
        finally:
            engine.close()
            server.stop()


def _framed(call: int, body: bytes, framing: int) -> bytes:
    match framing:
        case 0:
            return bytes([call]) + response(200, body)
        case 1:
            return bytes([call]) + chunked() + chunk(body) + chunk(b"")
        case 2:
            return bytes([call]) + response(500, body)
        case _:
            return bytes([call]) + b"HTTP/1.1 200 OK\r\n\r\n" + body


def _answer_of(call: int) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda value, framing: _framed(call, json.dumps(value).encode() + b"\n", framing),
        shape(ANSWERS[call]),
        st.integers(0, 3),
    )


def _rows(data: bytes) -> None:
    trimmer = RowTrimmer()
    for at in range(0, len(data), 50):
        trimmer.feed(data[at : at + 50])
    found = trimmer.trimmed()
    assert len(found) <= len(data)
    rows = json.loads(data)
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        assert len(json.loads(found)) == len(rows)


@contextmanager
def _small_rows() -> Iterator[Run]:
    before = bounds.ROW_VALUE, bounds.ROW_STRINGS
    bounds.ROW_VALUE, bounds.ROW_STRINGS = 12, 3
    try:
        yield _rows
    finally:
        bounds.ROW_VALUE, bounds.ROW_STRINGS = before


def _frames(data: bytes) -> None:
    def joined(cuts: int) -> list[bytes]:
        decoder, found = Decoder(), [b"", b"", b"", b""]
        for at in range(0, len(data), cuts):
            for stream, content in decoder.receive(data[at : at + cuts]):
                found[stream] += content
        decoder.end()
        return found

    whole = joined(len(data) or 1)
    assert joined(5) == whole


HTTP_WORDS = (
    *(
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n\r\n",
        b"0\r\n",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: ", b"HTTP/1.1 101 UPGRADED\r\n\r\n", b"204", b"ffffffffffffff\r\n"),
)
TARGETS = (
    Target(
        name="docker-http",
        corpus=[
            response(200, INSPECT),
            chunked() + chunk(b"abc") + chunk(b"d" * 50) + chunk(b""),
            b"HTTP/1.1 200 OK\r\n\r\nuntil closed",
        ],
        words=HTTP_WORDS,
        declared=(MalformedResponse,),
        open=pure(_http),
        enormous=[
            lambda: b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20),
            lambda: chunked() + b"0\r\n" + b"a: b\r\n" * 99999,
        ],
    ),
    Target(
        name="docker-answers",
        corpus=[_framed(call, json.dumps(answer).encode(), call % 2) for call, answer in enumerate(ANSWERS)],
        words=(*HTTP_WORDS, b'"Labels":{"', b"null", b'"Id":', b"[" * 900, b'{"a":' * 900, b'{"message":"', b"\n"),
        declared=(ShimError,),
        open=_adapter,
        strategy=st.integers(0, len(CALLS) - 1).flatmap(_answer_of),
        memory=64 << 20,
        seconds=20.0,
        enormous=[
            *(lambda make=make: _framed(0, make(), 1) for make in NESTED),
            lambda: _framed(0, b'{"Id":"c","Name":"' + b"x" * (100 << 20), 3),
            lambda: _framed(1, b'[{"Id":"c","Labels":{"a":"' + b"x" * (100 << 20) + b'"}}]', 3),
            lambda: _framed(1, b'[{"Id":"c","Labels":{' + b'"":"",' * (4 << 20) + b'"":""}}]', 3),
            lambda: _framed(4, b"x" * (100 << 20), 3),
            lambda: _framed(5, b'{"status":"' + b"x" * (100 << 20), 3),
        ],
    ),
    Target(
        name="docker-rows",
        corpus=[json.dumps([ROW, INSPECT]).encode(), json.dumps([{"a": ['\\"', {"b": "ü"}]}], indent=1).encode()],
        declared=(ValueError, RecursionError),
        open=_small_rows,
        strategy=st.lists(st.dictionaries(st.text(max_size=4), json_values()), max_size=5).map(
            lambda rows: json.dumps(rows).encode()
        ),
    ),
    Target(
        name="docker-output",
        corpus=[b"\x01\0\0\0\0\0\0\x05hello\x02\0\0\0\0\0\0\x03abc" * 3],
        words=(b"\x01\0\0\0\0\0\0\x05", b"\x02\0\0\0\0\0\0\0", b"\x03\0\0\0\0\x10\0\0"),
        declared=(MalformedStream,),
        open=pure(_frames),
    ),
)
