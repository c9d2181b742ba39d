"""The raw two-way connection that an exec or attach becomes once Docker has upgraded it.

The SDK's sockets for this drop output that arrives together with the `101` and give up after 60 s of silence, so the
shim upgrades connections itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from shim.base import deadline
from shim.domain.errors import ShimError, Unavailable
from shim.engine.failures import asking
from shim.engine.session import Params, Session, Stream
from shim.engine.stdcopy import STDIN, STDOUT, SYSTEM_ERROR, Decoder, Frame, MalformedStream

_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}

GATHER_SECONDS = 0.0008
"""Longest rest before the next read of output that keeps coming. Docker mostly writes 4 KiB at a time: a read and a
send for each took as much of the processor as dockerd itself, from which the output comes."""
GATHER_BYTES = 128 * 1024
"""A rest is no longer than so many take to come. Of pieces of 4 KiB the socket holds 176 KiB; a daemon that waits for
room in it has to be woken for each of them."""
FLOWING_SECONDS = 0.001
"""Output for which a read has waited no longer than this keeps coming."""

LEAST_BYTES = 16 * 1024
MOST_BYTES = 256 * 1024
"""Bounds of what one read asks for. A session may wait for hours, and holds that memory."""


class Gathering:
    """How long to rest before the next read, and how much to read then."""

    __slots__ = ("_clock", "_ended", "_most", "_rest", "_sleep")

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rest = 0.0
        self._most = LEAST_BYTES
        self._ended = clock()

    def read(self, read: Callable[[int], bytes]) -> bytes:
        """Give what `read` gives, a little later where it would be many small pieces one after the other."""
        if self._rest:
            self._sleep(self._rest)
        began = self._clock()
        piece = read(self._most)
        ended = self._clock()
        flowing = ended - began < FLOWING_SECONDS
        if not flowing or len(piece) >= self._most:
            self._rest = 0.0
        else:
            self._rest = min(GATHER_SECONDS, (ended - self._ended) * GATHER_BYTES / max(1, len(piece)))
        self._most = min(MOST_BYTES, max(self._most, 2 * len(piece))) if flowing else LEAST_BYTES
        self._ended = ended
        return piece


class HijackedStream:
    """One upgraded connection. One thread reads, one may write; any may `close`."""

    def __init__(self, stream: Stream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._decoder = Decoder()
        self._gathering = Gathering()

    def read(self) -> bytes:
        """Wait for the next bytes as they are on the wire (what a process with a terminal writes); empty at the end."""
        with asking(self._what):
            piece = self._gathering.read(self._stream.read_raw)
        if not piece:
            self._stream.scope.check(self._what)
            deadline.current().check(self._what)
        return piece

    def frames(self) -> Iterator[Frame]:
        """Yield (1 for stdout, 2 for stderr; bytes) of a process without a terminal.

        It ends when the process has closed both, and after `close`. A scope that expires in between ends this
        iterator only; a new one goes on where it was.
        """
        try:
            while piece := self.read():
                yield from map(self._checked, self._decoder.receive(piece))
            if not self._stream.is_aborted():
                self._decoder.end()
        except MalformedStream as cause:
            raise Unavailable(f"{self._what}: {cause}") from cause

    def _checked(self, frame: Frame) -> Frame:
        number, data = frame
        if number == SYSTEM_ERROR:
            raise ShimError(f"{self._what}: {data.decode(errors='replace').strip()}")
        return (STDOUT if number == STDIN else number), data  # a terminal's echo, says the API, is written on stdout

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the process's stdin."""
        with asking(self._what):
            self._stream.write(data)

    def close_stdin(self) -> None:
        """Let the process read end of file on its stdin; its output still comes."""
        with asking(self._what):
            self._stream.write_eof()

    def close(self) -> None:
        """End the connection; a blocked read ends too. Idempotent, from any thread."""
        self._stream.abort()


@contextmanager
def hijacked(
    session: Session,
    path: str,
    *,
    what: str,
    params: Params | None = None,
    body: bytes = b"",
    timeout: float | None,
) -> Iterator[HijackedStream]:
    """Upgrade `POST path` for the block; leaving it closes the connection.

    `timeout` in seconds bounds the wait for the upgrade.
    An Engine behind something that drops the upgrade answers 200 and goes on raw on the same connection: both are
    taken.
    """
    with ExitStack() as held:
        with asking(what, within=timeout):
            stream = held.enter_context(
                session.streamed("POST", path, params=params, headers=_UPGRADE, body=body, timeout=timeout)
            )
        # Also where the upgrade was dropped and nothing in the response says that it is no ordinary one.
        held.callback(stream.abort)
        yield HijackedStream(stream, what)
