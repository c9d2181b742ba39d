"""Builds SPDY frames from the specification, without the code under test."""

import struct

from shim.streaming import spdy
from shim.streaming.spdy import DataReceived, Event

FIN = 1
UNIDIRECTIONAL = 2
ZLIB_HEAD = bytes.fromhex("78f9 e3c6a7c2")  # deflate, 32 KiB window, preset dictionary and its id


def control(kind: int, payload: bytes = b"", *, flags: int = 0, version: int = 3) -> bytes:
    head = struct.pack("!HHB", 0x8000 | version, kind, flags) + len(payload).to_bytes(3, "big")
    return head + payload


def data(stream_id: int, payload: bytes = b"", *, flags: int = 0) -> bytes:
    return struct.pack("!IB", stream_id, flags) + len(payload).to_bytes(3, "big") + payload


def words(*numbers: int) -> bytes:
    return struct.pack(f"!{len(numbers)}I", *numbers)


def block(*pairs: tuple[bytes, bytes]) -> bytes:
    counted = [struct.pack("!I", len(field)) + field for pair in pairs for field in pair]
    return words(len(pairs)) + b"".join(counted)


def stored(raw: bytes, *, first: bool) -> bytes:
    """Return a zlib stream with a stored block, which ends at a byte."""
    return (ZLIB_HEAD if first else b"") + struct.pack("<BHH", 0, len(raw), len(raw) ^ 0xFFFF) + raw


class Peer:
    """Writes frames with headers. Its only state is whether the zlib stream has begun."""

    def __init__(self) -> None:
        self._first = True

    def pack(self, raw: bytes) -> bytes:
        first, self._first = self._first, False
        return stored(raw, first=first)

    def syn_stream(
        self, stream_id: int, *pairs: tuple[bytes, bytes], flags: int = 0, raw: bytes | None = None, priority: int = 0
    ) -> bytes:
        payload = words(stream_id, 0) + bytes((priority << 5, 0)) + self.pack(block(*pairs) if raw is None else raw)
        return control(1, payload, flags=flags)

    def syn_reply(self, stream_id: int, *pairs: tuple[bytes, bytes], flags: int = 0) -> bytes:
        return control(2, words(stream_id) + self.pack(block(*pairs)), flags=flags)

    def headers(self, stream_id: int, *pairs: tuple[bytes, bytes], flags: int = 0) -> bytes:
        return control(8, words(stream_id) + self.pack(block(*pairs)), flags=flags)


def rst_stream(stream_id: int, status: int) -> bytes:
    return control(3, words(stream_id, status))


def settings(**values: int) -> bytes:
    ids = {"max_concurrent_streams": 4, "initial_window_size": 7}
    return control(4, words(len(values), *(word for name, value in values.items() for word in (ids[name], value))))


def ping(number: int) -> bytes:
    return control(6, words(number))


def goaway(last: int, status: int) -> bytes:
    return control(7, words(last, status))


def window_update(stream_id: int, delta: int) -> bytes:
    return control(9, words(stream_id, delta))


def joined(events: list[Event]) -> list[Event | tuple[int, bytes]]:
    """Return the events with consecutive pieces of DATA merged, since their boundaries do not matter."""
    whole: list[Event | tuple[int, bytes]] = []
    for event in events:
        if not isinstance(event, DataReceived):
            whole.append(event)
        elif whole and isinstance(last := whole[-1], tuple) and last[0] == event.stream_id:
            whole[-1] = (event.stream_id, last[1] + bytes(event.data))
        else:
            whole.append((event.stream_id, bytes(event.data)))
    return whole


class Connection(spdy.Connection):
    """The server's side, which returns all events and all bytes at once for tests."""

    def receive_data(self, data: bytes) -> list[Event]:  # type: ignore[override] # a list instead of an iterator
        return list(super().receive_data(data))

    @property
    def queued(self) -> int:
        return self._session.outbox.size

    def data_to_send(self) -> bytes:
        return b"".join(self.buffers_to_send())
