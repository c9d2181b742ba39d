"""The raw two-way connection that an exec or attach becomes once Docker has upgraded it.

The SDK's sockets for this drop output that arrives together with the `101` and give up after 60 s of silence, so the
shim upgrades connections itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from shim.base import deadline
from shim.domain.errors import ShimError, Unavailable
from shim.engine.failures import docker_call
from shim.engine.session import DockerSession, Params, ResponseStream
from shim.engine.stdcopy import STDIN, STDOUT, SYSTEM_ERROR, Decoder, Frame, MalformedStream

_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}

BATCH_SECONDS = 0.0008
"""Longest pause before the next read of output that keeps coming. Docker mostly writes 4 KiB at a time: one read and
one send for each took as much processor time as dockerd, which produces the output."""
BATCH_BYTES = 128 * 1024
"""A pause is no longer than so many bytes take to arrive. The socket holds 176 KiB of pieces of 4 KiB; once it is full,
the daemon has to be woken for each piece."""
FLOWING_SECONDS = 0.001
"""Output keeps coming as long as no read waits longer than this."""

MIN_READ_BYTES = 16 * 1024
MAX_READ_BYTES = 256 * 1024
"""Bounds of the bytes of one read. A session may wait for hours, and holds that memory."""


class ReadBatching:
    """Batches small pieces of output: how long to pause before the next read, and how much to read then."""

    __slots__ = ("_clock", "_ended", "_most", "_rest", "_sleep")

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rest = 0.0
        self._most = MIN_READ_BYTES
        self._ended = clock()

    def read(self, read: Callable[[int], bytes]) -> bytes:
        """Return what `read` returns, after a short pause if the output keeps coming in small pieces."""
        if self._rest:
            self._sleep(self._rest)
        began = self._clock()
        piece = read(self._most)
        ended = self._clock()
        flowing = ended - began < FLOWING_SECONDS
        if not flowing or len(piece) >= self._most:
            self._rest = 0.0
        else:
            self._rest = min(BATCH_SECONDS, (ended - self._ended) * BATCH_BYTES / max(1, len(piece)))
        self._most = min(MAX_READ_BYTES, max(self._most, 2 * len(piece))) if flowing else MIN_READ_BYTES
        self._ended = ended
        return piece


class HijackedStream:
    """One upgraded connection. One thread reads, one may write; any may `close`."""

    def __init__(self, stream: ResponseStream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._decoder = Decoder()
        self._batching = ReadBatching()

    def read(self) -> bytes:
        """Wait for the next raw bytes (what a process with a terminal writes); empty at the end."""
        with docker_call(self._what):
            piece = self._batching.read(self._stream.read_raw)
        if not piece:
            self._stream.scope.check(self._what)
            deadline.current().check(self._what)
        return piece

    def frames(self) -> Iterator[Frame]:
        """Yield (1 for stdout, 2 for stderr; bytes) of a process without a terminal.

        The iterator ends when the process has closed both, and after `close`. A scope that expires ends this iterator
        only; a new one continues at the same position.
        """
        try:
            while piece := self.read():
                yield from map(self._check_frame, self._decoder.receive(piece))
            if not self._stream.is_aborted():
                self._decoder.end()
        except MalformedStream as cause:
            raise Unavailable(f"{self._what}: {cause}") from cause

    def _check_frame(self, frame: Frame) -> Frame:
        number, data = frame
        if number == SYSTEM_ERROR:
            raise ShimError(f"{self._what}: {data.decode(errors='replace').strip()}")
        return (STDOUT if number == STDIN else number), data  # Docker's API: the echo of a terminal belongs to stdout

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the process's stdin."""
        with docker_call(self._what):
            self._stream.write(data)

    def close_stdin(self) -> None:
        """Close the process's stdin; its output still comes."""
        with docker_call(self._what):
            self._stream.write_eof()

    def close(self) -> None:
        """End the connection; a blocked read ends too. Idempotent, from any thread."""
        self._stream.abort()


@contextmanager
def hijack(
    session: DockerSession,
    path: str,
    *,
    what: str,
    params: Params | None = None,
    body: bytes = b"",
    timeout: float | None,
) -> Iterator[HijackedStream]:
    """Upgrade `POST path` for the block; leaving it closes the connection.

    `timeout` in seconds bounds the wait for the upgrade. Behind a proxy that drops the `Upgrade` header an Engine
    answers 200 and then sends raw bytes on the same connection: both answers are accepted.
    """
    with ExitStack() as held:
        with docker_call(what, within=timeout):
            stream = held.enter_context(
                session.stream_response("POST", path, params=params, headers=_UPGRADE, body=body, timeout=timeout)
            )
        # Also for the answer 200, which is framed like an ordinary response.
        held.callback(stream.abort)
        yield HijackedStream(stream, what)
