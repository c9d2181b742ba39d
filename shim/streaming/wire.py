"""The interface of protocols that carry the streams of a session over one connection."""

from collections.abc import Iterable
from typing import Protocol

from shim.streaming.spdy import Buffer, Event, Queued, ResetStatus


class Wire(Protocol):
    """A protocol without I/O. The manual in `shim.streaming.spdy` applies to all implementations.

    Methods raise `NotAllowed` for a closed stream. Each stream begins with a `StreamOpened`, whose headers contain its
    type. Protocols with numbered streams generate these headers.
    """

    def receive_data(self, data: bytes) -> Iterable[Event]:
        """Yield the events of these bytes. The first call gets the bytes received after the HTTP request, if any."""
        ...

    def receive_eof(self) -> Iterable[Event]:
        """Yield the events of the end of the connection."""
        ...

    @property
    def fixed(self) -> bool:
        """Return whether the set of streams is fixed: the client can neither open nor close single streams."""
        ...

    @property
    def wants_data(self) -> bool:
        """Return whether to read from the connection."""
        ...

    @property
    def closed(self) -> bool:
        """Return whether the owner must send the queued bytes and then close."""
        ...

    def buffers_to_send(self) -> list[Queued]:
        """Remove and return all queued buffers."""
        ...

    def reply(self, stream_id: int) -> None:
        """Accept a stream."""
        ...

    def send_window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` takes now."""
        ...

    def send_data(self, stream_id: int, data: Buffer, *, fin: bool = False) -> None:
        """Queue bytes; `fin` half-closes the stream if the protocol can."""
        ...

    def acknowledge(self, stream_id: int, count: int) -> None:
        """Record that the application has consumed bytes."""
        ...

    def reset(self, stream_id: int, status: ResetStatus = ...) -> None:
        """Close both directions of a stream."""
        ...

    def goaway(self) -> None:
        """Announce that no further data will be sent."""
        ...
