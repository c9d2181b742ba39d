"""A stream of a session, with blocking reads and writes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Lock
from typing import Protocol, cast

from shim.domain.errors import Cancelled
from shim.streaming.spdy import Buffer, Headers, NotAllowed, Queued

_COPY_BELOW = 1024
_COPIED = 4096
"""Pieces shorter than _COPY_BELOW are merged into blocks of _COPIED bytes: a memoryview takes 200 bytes itself."""

_NAMES = {name: name for name in ("streamtype", "port", "requestid")}
_MAX_VALUE = 64
"""Maximum characters of a header value. Longer values, and headers that no task uses, are dropped."""


class Sending(Protocol):
    """The part of a session that channels use. All methods are called under the session's lock."""

    def room(self, channel: "Channel") -> int:
        """Return how many bytes may be queued; 0 to wait. Raise NotAllowed if the stream is closed."""
        ...

    def put(self, channel: "Channel", data: Buffer, *, fin: bool) -> None:
        """Queue and send bytes."""
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
"""Takes bytes without waiting; returns their number, 0 if it cannot take any now. May raise OSError."""

_BUFFERS = 64
"""Maximum buffers passed to a sink in one call."""


class Channel:
    """A stream of bytes in both directions.

    One thread may read while another writes. Any thread may call `abandon` and `reset`.
    """

    __slots__ = (
        *("_abandoned", "_ended", "_finished", "_uncopied", "_headers", "_lock", "_end_reason", "_pieces", "_readable"),
        *("_writable", "_sending", "_sink", "_unacknowledged", "_was_reset", "id"),
    )

    def __init__(self, stream_id: int, *, headers: Headers, sending: Sending, lock: Lock, writable: Condition) -> None:
        self.id = stream_id
        self._headers = {_NAMES[name]: value for name, value in headers if name in _NAMES and len(value) <= _MAX_VALUE}
        self._sending = sending
        self._lock = lock
        self._readable: Condition | None = None  # created by the first reader that waits
        self._writable = writable
        self._sink: Sink | None = None
        self._pieces: list[Queued] = []
        self._uncopied = 0  # number of pieces at the end that may be views of a whole read
        self._unacknowledged = 0  # bytes returned by the last `read`, which the reader may still use
        self._ended = False  # the client sends nothing more
        self._finished = False  # nothing more is written
        self._abandoned = False  # nobody reads any more
        self._was_reset = False  # by the client
        self._end_reason: str = ""  # why the session has ended; empty while it runs

    def header(self, name: str) -> str:
        """Return the value of a header; empty if it is missing or longer than _MAX_VALUE."""
        return self._headers.get(name, "")

    def accept(self) -> None:
        """Accept the stream, which must happen before a write."""
        with self._lock:
            self._sending.accept(self)

    def read(self) -> Buffer:
        """Wait for bytes and return them; empty at the end of the input. Raise Cancelled if the client is gone.

        This acknowledges the bytes of the previous call, because the reader may have needed them until now, for example
        to write them to a slow process.
        """
        with self._lock:
            self._acknowledge_read()
            if self._readable is None:
                self._readable = Condition(self._lock)
            self._readable.wait_for(lambda: self._pieces or self._ended or self._abandoned or self._end_reason)
            return self._take()

    def set_sink(self, sink: Sink | None) -> None:
        """Pass input of the client to `sink` as soon as it arrives, instead of to a reader; None stops this.

        The receiving thread and `flush_to_sink` call `sink` under the session's lock. The previous sink is not called
        after this returns.
        """
        with self._lock:
            self._sink = sink

    def flush_to_sink(self) -> bool:
        """Pass queued bytes to the sink; return whether the queue is empty. Raise the sink's error, or Cancelled."""
        with self._lock:
            if not self._pieces and self._end_reason and not self._ended:
                raise Cancelled(self._end_reason)
            self._flush()
            return not self._pieces

    @property
    def drained(self) -> bool:
        """Whether all input was read and no more will arrive."""
        with self._lock:
            return not self._pieces and (self._ended or self._abandoned)

    def read_now(self) -> Buffer:
        """Return bytes that have already arrived; empty if there are none. Do not wait."""
        with self._lock:
            is_ready = bool(self._pieces)
        return self.read() if is_ready else b""

    def write_from(self, source: Callable[[int], Buffer]) -> Buffer | None:
        """Send the bytes that `source(room)` returns, and return them. Without room, return None and do not call it.

        So `source` never reads bytes that cannot be sent. Raise Cancelled if the client is gone, NotAllowed if it has
        closed the stream, and any error of `source`.
        """
        with self._lock:
            if self._end_reason:
                raise Cancelled(self._end_reason)
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
        """Send `data`; wait while the client does not take it. Raise Cancelled if the client is gone.

        Return the unsent rest, which is empty unless there was no room for `seconds`, or `unless` returned True. If the
        client has closed the stream, drop `data`, so that other streams continue.
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
        """End the output (half-close). Idempotent."""
        with self._lock:
            if self._end_reason or self._finished:
                return
            self._finished = True
            with suppress(NotAllowed):  # the client has closed the stream
                self._sending.put(self, b"", fin=True)

    def abandon(self) -> None:
        """Drop all further input, and end the wait of a reader. Idempotent."""
        with self._lock:
            self._abandoned = True
            self._acknowledge_all()
            self._notify()

    def reset(self) -> None:
        """Close both directions of the stream at once."""
        with self._lock:
            self.refuse()

    @property
    def was_reset(self) -> bool:
        """Return whether the client has reset the stream."""
        return self._was_reset

    def _take(self) -> Buffer:
        if self._pieces and not self._abandoned:
            piece = self._pieces.pop(0)
            self._unacknowledged = len(piece)
            return bytes(piece) if isinstance(piece, bytearray) else piece
        if self._end_reason and not self._abandoned and not self._ended:
            raise Cancelled(self._end_reason)
        return b""

    def _acknowledge_read(self) -> None:
        if self._unacknowledged:
            self._sending.consumed(self, self._unacknowledged)
            self._unacknowledged = 0

    def _acknowledge_all(self) -> None:
        self._acknowledge_read()
        pieces, self._pieces = self._pieces, []
        self._uncopied = 0
        if waiting := sum(map(len, pieces)):
            self._sending.consumed(self, waiting)

    def _flush(self) -> None:
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
        if not (self._end_reason or self._sending.room(self)):
            self._writable.wait_for(lambda: self._end_reason or self._sending.room(self) or unless(), seconds)
        if self._end_reason:
            raise Cancelled(self._end_reason)
        return self._sending.room(self)

    # Called by the session under its lock

    @property
    def over(self) -> bool:
        """Return whether both directions are closed."""
        return self._ended and self._finished

    def refuse(self) -> None:
        """Close both directions of the stream at once."""
        self._ended = self._finished = True
        self._acknowledge_all()
        self._sending.reset(self)
        self._notify()

    def feed(self, data: memoryview) -> None:
        """Queue bytes from the client. A call of `finish_read` must follow."""
        if self._abandoned:
            self._sending.consumed(self, len(data))
            return
        last = self._pieces[-1] if self._pieces else None
        if len(data) >= _COPY_BELOW:
            self._pieces.append(data)
            self._uncopied += 1
        elif isinstance(last, bytearray) and len(last) < _COPIED:
            last += data
        else:
            self._pieces.append(bytearray(data))
            self._uncopied += 1

    def finish_read(self) -> bool:
        """Process the fed bytes at the end of a read of the connection; return whether bytes wait for a reader.

        A memoryview keeps the whole buffer of its read in memory, but only its own bytes count against the windows. So
        a view of less than three quarters of its buffer is copied.
        """
        with suppress(OSError):  # the owner of the sink gets the error from `flush_to_sink`
            self._flush()
        pieces = self._pieces
        for at in range(max(0, len(pieces) - self._uncopied), len(pieces)):
            piece = pieces[at]
            if isinstance(piece, memoryview) and len(piece) * 4 < len(cast("bytes", piece.obj)) * 3:
                pieces[at] = bytes(piece)
        self._uncopied = 0
        if pieces:
            self._notify()
        return bool(pieces)

    def end(self) -> None:
        """Record that the client has finished sending on this stream."""
        self._ended = True
        self._notify()

    def mark_reset(self) -> None:
        """Record that the client has reset the stream. Unread bytes are dropped and need no acknowledgement."""
        self._was_reset = True
        self._unacknowledged = 0
        self._pieces.clear()
        self._uncopied = 0
        self.end()

    def terminate(self, why: str) -> None:
        """Record that the session has ended."""
        self._end_reason = why
        self._notify()
