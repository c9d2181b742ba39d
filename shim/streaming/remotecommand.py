"""The streams of exec and attach, and the status at their end.

Source: `k8s.io/kubelet/pkg/cri/streaming/remotecommand` and the traffic of its clients. `v3.channel.k8s.io` added the
resize stream, v4 the status as JSON. Before v4 the error stream contains plain text or nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from shim.domain.errors import DeadlineExceeded, InvalidArgument
from shim.streaming.channel import Channel
from shim.streaming.session import Session
from shim.streaming.spdy import Buffer, Headers
from shim.streaming.tokens import RemoteTask

SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")

WEBSOCKET_PROTOCOLS = (
    "v5.channel.k8s.io",
    *(f"v{version}.{form}" for version in (4, 3, 2) for form in ("channel.k8s.io", "base64.channel.k8s.io")),
    "channel.k8s.io",
    "base64.channel.k8s.io",
)

STDIN, STDOUT, STDERR, ERROR, RESIZE = "stdin", "stdout", "stderr", "error", "resize"
NUMBERS = {STDIN: 0, STDOUT: 1, STDERR: 2, ERROR: 3, RESIZE: 4}
"""Numbers of the WebSocket channels."""

_STREAM_TYPE = "streamtype"
_MAX_SIZE_TEXT = 4096
_SIZES = 16
"""Maximum decoded messages of a piece of the resize stream, from its end, because only the last size matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The streams that the client has opened; None for a stream that was not requested."""

    session: Session
    error: Channel
    stdin: Channel | None
    stdout: Channel | None
    stderr: Channel | None
    resize: "Sizes | None"


class TerminalSize(msgspec.Struct, frozen=True, rename="pascal"):
    """A message of the resize stream: the size in characters."""

    width: int
    height: int


def expected_streams(task: RemoteTask, *, protocol: str) -> list[str]:
    """Return the types of the streams that a client opens for `task`."""
    asked = {STDIN: task.stdin, STDOUT: task.stdout, STDERR: task.stderr, ERROR: True}
    asked[RESIZE] = task.tty and protocol.startswith(("v3.", "v4.", "v5."))
    return [kind for kind, wanted in asked.items() if wanted]


def channel_headers(task: RemoteTask, *, protocol: str) -> dict[int, Headers]:
    """Return the WebSocket channels for `task`, with the headers that their SPDY streams would have."""
    return {NUMBERS[kind]: ((_STREAM_TYPE, kind),) for kind in expected_streams(task, protocol=protocol)}


def wait_streams(session: Session, task: RemoteTask, *, protocol: str, seconds: float) -> Streams:
    """Wait until the client has opened all streams; accept and return them.

    Raise DeadlineExceeded after `seconds`, InvalidArgument for an unexpected stream, Cancelled if the client is gone.
    """
    expected = expected_streams(task, protocol=protocol)
    found: dict[str, Channel] = {}
    until = time.monotonic() + seconds
    while len(found) < len(expected):
        channel = session.next_channel(seconds=max(0.0, until - time.monotonic()))
        if channel is None:
            missing = ", ".join(sorted(set(expected) - set(found)))
            raise DeadlineExceeded(f"{task.kind}: the client did not open {missing} within {seconds:g} s")
        kind = channel.header(_STREAM_TYPE)
        if kind not in expected or kind in found:
            raise InvalidArgument(f"{task.kind}: the client opened a stream of type {kind[:32]!r}")
        channel.accept()
        found[kind] = channel
    session.refuse_streams()
    return Streams(
        session=session,
        error=found[ERROR],
        stdin=found.get(STDIN),
        stdout=found.get(STDOUT),
        stderr=found.get(STDERR),
        resize=Sizes(found[RESIZE]) if RESIZE in found else None,
    )


class Sizes:
    """Terminal sizes of the resize stream: consecutive JSON objects, split anywhere. Not thread-safe."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._text = b""
        self._last: TerminalSize | None = None

    def known(self) -> TerminalSize | None:
        """Return the last size received so far; None if there is none."""
        self._last = self._newest() or self._last
        return self._last

    def __iter__(self) -> Iterator[TerminalSize]:
        """Yield further sizes until the stream ends. If several arrive together, yield only the last."""
        while piece := self._channel.read():
            size = self._last_of(piece)
            size = self._newest() or size
            if size is not None:
                yield size

    def _newest(self) -> TerminalSize | None:
        last = None
        while piece := self._channel.read_now():
            last = self._last_of(piece) or last
        return last

    def abandon(self) -> None:
        """Stop reading."""
        self._channel.abandon()

    def _last_of(self, piece: Buffer) -> TerminalSize | None:
        whole, brace, rest = (self._text + bytes(piece)).rpartition(b"}")
        self._text = rest[-_MAX_SIZE_TEXT:]
        last = None
        for message in whole.split(b"}")[-_SIZES:] if brace else ():
            last = _size(message + b"}") or last
        return last


def _size(text: bytes) -> TerminalSize | None:
    try:
        size = msgspec.json.decode(text, type=TerminalSize)
    except msgspec.DecodeError:
        return None
    return size if 0 < size.width <= 0xFFFF and 0 < size.height <= 0xFFFF else None


def status_from_exit_code(code: int, *, protocol: str) -> bytes:
    """Return the message of the error stream for a command that has exited."""
    message = f"command terminated with non-zero exit code: {code}"
    if not _has_json_status(protocol):
        return message.encode() if code else b""
    if not code:
        return _status("Success")
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return _status("Failure", message=message, reason="NonZeroExitCode", details={"causes": causes})


def status_from_failure(message: str, *, protocol: str) -> bytes:
    """Return the message of the error stream for an exec or attach that has failed."""
    if not _has_json_status(protocol):
        return message.encode(errors="replace")
    causes = [{"message": message}]
    return _status("Failure", message=message, reason="InternalError", details={"causes": causes}, code=500)


def _has_json_status(protocol: str) -> bool:
    return protocol.startswith(("v4.", "v5."))


def _status(status: str, **fields: object) -> bytes:
    return msgspec.json.encode({"metadata": {}, "status": status, **fields})
