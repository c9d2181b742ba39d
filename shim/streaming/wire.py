"""How the streams of a session share one connection, whatever the protocol."""

from collections.abc import Iterable
from typing import Protocol

from shim.streaming.spdy import Buffer, Event, Queued, ResetStatus


class Wire(Protocol):
    """A protocol without input or output. `shim.streaming.spdy.Connection` is one, and its manual holds for all.

    `NotAllowed` is raised for a stream that is gone. Streams come as `StreamOpened`, and what they are is said by their
    headers, also where the protocol numbers them and has no headers.
    """

    def receive_data(self, data: bytes) -> Iterable[Event]:
        """Yield the events of these bytes. The first call has what came with the HTTP request, often nothing."""
        ...

    def receive_eof(self) -> Iterable[Event]:
        """Yield the events of the end of the connection."""
        ...

    @property
    def fixed(self) -> bool:
        """Return whether no further stream will be opened, and the client cannot end one alone."""
        ...

    @property
    def wants_data(self) -> bool:
        """Return whether to read from the connection."""
        ...

    @property
    def closed(self) -> bool:
        """Return whether to send what is queued, and then close."""
        ...

    def buffers_to_send(self) -> list[Queued]:
        """Remove and return all that is queued."""
        ...

    def reply(self, stream_id: int) -> None:
        """Accept a stream."""
        ...

    def send_window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` takes now."""
        ...

    def send_data(self, stream_id: int, data: Buffer, *, fin: bool = False) -> None:
        """Queue bytes; `fin` half-closes, where the protocol can."""
        ...

    def acknowledge(self, stream_id: int, count: int) -> None:
        """Record that the application has consumed bytes."""
        ...

    def reset(self, stream_id: int, status: ResetStatus = ...) -> None:
        """End a stream, both ways."""
        ...

    def goaway(self) -> None:
        """Announce that no further data will be sent."""
        ...
