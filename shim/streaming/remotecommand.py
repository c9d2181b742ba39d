"""Remote command: what the streams of an exec or attach are, and how its end is reported.

Source: `k8s.io/kubelet/pkg/cri/streaming/remotecommand` and its clients, as seen on the wire. `v4.channel.k8s.io`
brought the status as JSON, v3 the resize stream; before, the error stream had a text or nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from shim.domain.errors import DeadlineExceeded, InvalidArgument
from shim.streaming.channel import Channel
from shim.streaming.sessions import RemoteTask
from shim.streaming.spdy import Buffer, Headers
from shim.streaming.transport import Session

SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")

WEBSOCKET_PROTOCOLS = (
    "v5.channel.k8s.io",
    *(f"v{version}.{form}" for version in (4, 3, 2) for form in ("channel.k8s.io", "base64.channel.k8s.io")),
    "channel.k8s.io",
    "base64.channel.k8s.io",
)

STDIN, STDOUT, STDERR, ERROR, RESIZE = "stdin", "stdout", "stderr", "error", "resize"
NUMBERS = {STDIN: 0, STDOUT: 1, STDERR: 2, ERROR: 3, RESIZE: 4}
"""Of the WebSocket channels."""

_STREAM_TYPE = "streamtype"
_MAX_SIZE_TEXT = 4096
_SIZES = 16
"""Messages of a piece of the resize stream that are decoded, from its end: only the last size counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The streams of one session, as the client opened them; None for what was not asked for."""

    session: Session
    error: Channel
    stdin: Channel | None
    stdout: Channel | None
    stderr: Channel | None
    resize: "Sizes | None"


class TerminalSize(msgspec.Struct, frozen=True, rename="pascal"):
    """One message of the resize stream, in characters."""

    width: int
    height: int


def expected_streams(task: RemoteTask, *, protocol: str) -> list[str]:
    """Return the stream types a client opens for `task`."""
    asked = {STDIN: task.stdin, STDOUT: task.stdout, STDERR: task.stderr, ERROR: True}
    asked[RESIZE] = task.tty and protocol.startswith(("v3.", "v4.", "v5."))
    return [kind for kind, wanted in asked.items() if wanted]


def channel_headers(task: RemoteTask, *, protocol: str) -> dict[int, Headers]:
    """Return the WebSocket channels of `task`, with the headers SPDY would have."""
    return {NUMBERS[kind]: ((_STREAM_TYPE, kind),) for kind in expected_streams(task, protocol=protocol)}


def wait_streams(session: Session, task: RemoteTask, *, protocol: str, seconds: float) -> Streams:
    """Wait until the client has opened all streams, and take them.

    DeadlineExceeded after `seconds`, InvalidArgument for a stream that does not belong to the task.
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
    """Terminal sizes of the resize stream: JSON objects in a row, split anywhere. For one thread at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._text = b""
        self._last: TerminalSize | None = None

    def known(self) -> TerminalSize | None:
        """Return the last size that has come so far, None when none has."""
        self._last = self._newest() or self._last
        return self._last

    def __iter__(self) -> Iterator[TerminalSize]:
        """Yield what else comes until the stream ends; of sizes that came together, the last."""
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
        """Read no more; see `Channel`."""
        self._channel.abandon()

    def _last_of(self, piece: Buffer) -> TerminalSize | None:
        whole, brace, rest = (self._text + bytes(piece)).rpartition(b"}")
        self._text = rest[-_MAX_SIZE_TEXT:]
        last = None
        for one in whole.split(b"}")[-_SIZES:] if brace else ():
            last = _size(one + b"}") or last
        return last


def _size(text: bytes) -> TerminalSize | None:
    try:
        size = msgspec.json.decode(text, type=TerminalSize)
    except msgspec.DecodeError:
        return None
    return size if 0 < size.width <= 0xFFFF and 0 < size.height <= 0xFFFF else None


def status_from_exit_code(code: int, *, protocol: str) -> bytes:
    """Return the message of the error stream for a command that has ended."""
    words = f"command terminated with non-zero exit code: {code}"
    if not _has_json_status(protocol):
        return words.encode() if code else b""
    if not code:
        return _status("Success")
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return _status("Failure", message=words, reason="NonZeroExitCode", details={"causes": causes})


def status_from_failure(message: str, *, protocol: str) -> bytes:
    """Return the message of the error stream for a command or attachment that has failed."""
    if not _has_json_status(protocol):
        return message.encode(errors="replace")
    causes = [{"message": message}]
    return _status("Failure", message=message, reason="InternalError", details={"causes": causes}, code=500)


def _has_json_status(protocol: str) -> bool:
    return protocol.startswith(("v4.", "v5."))


def _status(status: str, **fields: object) -> bytes:
    return msgspec.json.encode({"metadata": {}, "status": status, **fields})
