"""One stream of a session: blocking reads and writes, for threads of their own."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Lock
from typing import Protocol, cast

from shim.domain.errors import Cancelled
from shim.streaming.spdy import Buffer, Headers, NotAllowed, Queued

_COPY_BELOW = 1024
_COPIED = 4096
"""Pieces shorter than _COPY_BELOW are put together in blocks of _COPIED: a view costs 200 bytes, however short."""

_NAMES = {name: name for name in ("streamtype", "port", "requestid")}
_MAX_VALUE = 64
"""Headers that some task asks for, and how long a value of one may be; no more of a client's headers is kept."""


class Sending(Protocol):
    """The part of a session that channels use; all is called under the session's lock."""

    def room(self, channel: "Channel") -> int:
        """Return how much may be queued; 0 to wait, NotAllowed when the stream is gone."""
        ...

    def put(self, channel: "Channel", data: Buffer, *, fin: bool) -> None:
        """Queue and send."""
        ...

    def consumed(self, channel: "Channel", count: int) -> None:
        """Return `count` bytes of window to the peer."""
        ...

    def reset(self, channel: "Channel") -> None:
        """End the stream."""
        ...

    def accept(self, channel: "Channel") -> None:
        """Accept the stream."""
        ...


Sink = Callable[[Sequence[Queued]], int]
"""Takes bytes without waiting: how many it took, 0 when it takes none now. It may raise OSError."""

_BUFFERS = 64
"""Given to a sink at a time."""


class Channel:
    """A stream of bytes each way. One thread reads, one writes; any may `abandon` or `reset`."""

    __slots__ = (
        *("_abandoned", "_ended", "_finished", "_fresh", "_headers", "_lock", "_lost", "_pieces", "_readable"),
        *("_roomy", "_sending", "_sink", "_taken", "_was_reset", "id"),
    )

    def __init__(self, stream_id: int, *, headers: Headers, sending: Sending, lock: Lock, roomy: Condition) -> None:
        self.id = stream_id
        self._headers = {_NAMES[name]: value for name, value in headers if name in _NAMES and len(value) <= _MAX_VALUE}
        self._sending = sending
        self._lock = lock
        self._readable: Condition | None = None  # made for the first that waits
        self._roomy = roomy
        self._sink: Sink | None = None
        self._pieces: list[Queued] = []
        self._fresh = 0  # pieces, the last ones, that may keep all that was read with them
        self._taken = 0  # bytes that the reader has, and is not done with
        self._ended = False  # nothing more comes
        self._finished = False  # nothing more is written
        self._abandoned = False  # no reader is left
        self._was_reset = False  # by the client
        self._lost: str = ""  # why the session is over, once it is

    def header(self, name: str) -> str:
        """Return the value of a header, empty when it is not there, or longer than any that makes sense."""
        return self._headers.get(name, "")

    def accept(self) -> None:
        """Take the stream; before this nothing can be written."""
        with self._lock:
            self._sending.accept(self)

    def read(self) -> Buffer:
        """Wait for bytes; empty at the end of what the client sends. Cancelled when the client has gone.

        Those of the last call count against what the client may send until now: the reader may have been holding them
        for as long as a slow process takes.
        """
        with self._lock:
            self._consume_taken()
            if self._readable is None:
                self._readable = Condition(self._lock)
            self._readable.wait_for(lambda: self._pieces or self._ended or self._abandoned or self._lost)
            return self._take()

    def pour_into(self, sink: Sink | None) -> None:
        """Pass what the client sends to `sink` from now on, as soon as it arrives, in place of a reader; None: stop.

        It is called by the thread that receives, and by `pour`, under the session's lock. After this has returned
        another sink is called no more.
        """
        with self._lock:
            self._sink = sink

    def pour(self) -> bool:
        """Pass what is queued to the sink; return whether nothing is left. Raise what it raises, or Cancelled."""
        with self._lock:
            if not self._pieces and self._lost and not self._ended:
                raise Cancelled(self._lost)
            self._pour()
            return not self._pieces

    @property
    def drained(self) -> bool:
        """Return whether nothing is left to read, and nothing more will arrive."""
        with self._lock:
            return not self._pieces and (self._ended or self._abandoned)

    def read_now(self) -> Buffer:
        """Return bytes that have come already; empty when there are none."""
        with self._lock:
            come = bool(self._pieces)
        return self.read() if come else b""

    def write_from(self, source: Callable[[int], Buffer]) -> Buffer | None:
        """Send what `source`, called with the most there is room for, returns without waiting; None without room.

        So nothing is held that cannot be sent. Cancelled when the client has gone, NotAllowed when it has ended the
        stream, and whatever `source` raises.
        """
        with self._lock:
            if self._lost:
                raise Cancelled(self._lost)
            room = self._sending.room(self)
            if not room:
                return None
            data = source(room)
            if data:
                self._sending.put(self, data, fin=False)
            return data

    def write(
        self, data: Buffer, *, seconds: float | None = None, unless: Callable[[], bool] = lambda: False
    ) -> Buffer:
        """Send `data`, waiting while the client does not take it. Cancelled when the client has gone.

        Return the rest: none, unless there was no room for `seconds`, or `unless` says not to wait for it. A stream
        that the client has ended swallows it: the others go on.
        """
        rest = memoryview(data)
        try:
            with self._lock:
                while rest and (room := self._wait_room(seconds, unless)):
                    count = min(len(rest), room)
                    self._sending.put(self, rest[:count], fin=False)
                    rest = rest[count:]
        except NotAllowed:
            return b""
        return rest

    def finish(self) -> None:
        """End the output: nothing more will be written. Idempotent."""
        with self._lock:
            if self._lost or self._finished:
                return
            self._finished = True
            with suppress(NotAllowed):  # the client has ended the stream
                self._sending.put(self, b"", fin=True)

    def abandon(self) -> None:
        """Read no more: what still comes is dropped, and a reader that waits gets the end. Idempotent."""
        with self._lock:
            self._abandoned = True
            self._consume_all()
            self._notify()

    def reset(self) -> None:
        """End the stream at once, both ways."""
        with self._lock:
            self.refuse()

    @property
    def was_reset(self) -> bool:
        """The client has ended the stream at once, both ways."""
        return self._was_reset

    def _take(self) -> Buffer:
        if self._pieces and not self._abandoned:
            piece = self._pieces.pop(0)
            self._taken = len(piece)
            return bytes(piece) if isinstance(piece, bytearray) else piece
        if self._lost and not self._abandoned and not self._ended:
            raise Cancelled(self._lost)
        return b""

    def _consume_taken(self) -> None:
        if self._taken:
            self._sending.consumed(self, self._taken)
            self._taken = 0

    def _consume_all(self) -> None:
        self._consume_taken()
        pieces, self._pieces = self._pieces, []
        self._fresh = 0
        if waiting := sum(map(len, pieces)):
            self._sending.consumed(self, waiting)

    def _pour(self) -> None:
        while self._sink is not None and self._pieces:
            count = self._sink(self._pieces[:_BUFFERS])
            if not count:
                return
            self._drop(count)
            self._sending.consumed(self, count)

    def _drop(self, count: int) -> None:
        whole = 0
        for piece in self._pieces:
            if len(piece) > count:
                break
            count -= len(piece)
            whole += 1
        del self._pieces[:whole]
        if count:
            first = self._pieces[0]
            self._pieces[0] = first[count:] if isinstance(first, memoryview) else memoryview(first)[count:]

    def _notify(self) -> None:
        if self._readable is not None:
            self._readable.notify_all()

    def _wait_room(self, seconds: float | None, unless: Callable[[], bool]) -> int:
        if not (self._lost or self._sending.room(self)):
            self._roomy.wait_for(lambda: self._lost or self._sending.room(self) or unless(), seconds)
        if self._lost:
            raise Cancelled(self._lost)
        return self._sending.room(self)

    # By the session, under its lock.

    @property
    def over(self) -> bool:
        """Nothing more comes, and nothing more is written."""
        return self._ended and self._finished

    def refuse(self) -> None:
        """End the stream at once, both ways."""
        self._ended = self._finished = True
        self._consume_all()
        self._sending.reset(self)
        self._notify()

    def feed(self, data: memoryview) -> None:
        """Take bytes from the client; see `settle`."""
        if self._abandoned:
            self._sending.consumed(self, len(data))
            return
        last = self._pieces[-1] if self._pieces else None
        if len(data) >= _COPY_BELOW:
            self._pieces.append(data)
            self._fresh += 1
        elif isinstance(last, bytearray) and len(last) < _COPIED:
            last += data
        else:
            self._pieces.append(bytearray(data))
            self._fresh += 1

    def settle(self) -> bool:
        """Take note that all of a read was fed; return whether some of it waits to be read.

        What is kept is what the windows count: a view keeps all that was read with it, so it is copied unless it is
        most of that.
        """
        with suppress(OSError):  # the owner of the sink meets it when it pours
            self._pour()
        pieces = self._pieces
        for at in range(max(0, len(pieces) - self._fresh), len(pieces)):
            piece = pieces[at]
            if isinstance(piece, memoryview) and len(piece) * 4 < len(cast("bytes", piece.obj)) * 3:
                pieces[at] = bytes(piece)
        self._fresh = 0
        if pieces:
            self._notify()
        return bool(pieces)

    def end(self) -> None:
        """Take note that the client sends nothing more here."""
        self._ended = True
        self._notify()

    def void(self) -> None:
        """Take note that the client has reset the stream: what was not read of it counts no more."""
        self._was_reset = True
        self._taken = 0
        self._pieces.clear()
        self._fresh = 0
        self.end()

    def lose(self, why: str) -> None:
        """Take note that the session is over."""
        self._lost = why
        self._notify()
