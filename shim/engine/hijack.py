"""Upgrades a connection for an exec or attach, and carries its raw bytes in both directions.

The SDK's sockets drop output that arrives together with the `101` and give up after 60 s of silence, so the server
upgrades connections itself.
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
"""Longest pause before the next read of continuous output. Docker mostly writes 4 KiB at a time: a read and a send for
each piece took as much processor time as dockerd, which produces the output."""
BATCH_BYTES = 128 * 1024
"""A pause ends before this many bytes have arrived. The socket holds 176 KiB in pieces of 4 KiB; once it is full, the
daemon has to be woken for each piece."""
FLOWING_SECONDS = 0.001
"""Output is continuous while no read waits longer than this."""

MIN_READ_BYTES = 16 * 1024
MAX_READ_BYTES = 256 * 1024
"""Bounds on the size of a read. A session may wait for hours, and holds this memory meanwhile."""


class ReadBatching:
    """Batches small pieces of output by short pauses before reads."""

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
        """Call `read` with a size and return its bytes, after a short pause if output is continuous in small pieces."""
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
    """An upgraded connection. One thread reads, one may write; any thread may `close`."""

    def __init__(self, stream: ResponseStream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._decoder = Decoder()
        self._batching = ReadBatching()

    def read(self) -> bytes:
        """Wait for the next raw bytes, the output of a process with a terminal; empty at the end."""
        with docker_call(self._what):
            piece = self._batching.read(self._stream.read_raw)
        if not piece:
            self._stream.scope.check(self._what)
            deadline.current().check(self._what)
        return piece

    def frames(self) -> Iterator[Frame]:
        """Yield (1 for stdout, 2 for stderr; bytes) of a process without a terminal.

        The iterator ends when the process has closed both, and after `close`. An expired scope ends only this iterator;
        a new iterator continues at the same position.
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
        return (STDOUT if number == STDIN else number), data  # Docker's API writes stdin's echo to stdout

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the process's stdin."""
        with docker_call(self._what):
            self._stream.write(data)

    def close_stdin(self) -> None:
        """Close the process's stdin; output still arrives."""
        with docker_call(self._what):
            self._stream.write_eof()

    def close(self) -> None:
        """End the connection and a blocked read. Idempotent, from any thread."""
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
    """Upgrade `POST path` for the block; leaving the block closes the connection.

    `timeout` in seconds bounds the wait for the upgrade. Behind a proxy that drops the `Upgrade` header, the Engine
    answers 200 and then sends raw bytes on the same connection. Both answers are accepted.
    """
    with ExitStack() as held:
        with docker_call(what, within=timeout):
            stream = held.enter_context(
                session.stream_response("POST", path, params=params, headers=_UPGRADE, body=body, timeout=timeout)
            )
        # Also after a 200, which is framed like an ordinary response.
        held.callback(stream.abort)
        yield HijackedStream(stream, what)
