"""The channel table with events of real protocols."""

import threading

import pytest

from shim.domain.errors import Cancelled
from shim.streaming import spdy
from shim.streaming.channel import Channel
from shim.streaming.channel_table import ChannelTable
from tests.streaming.spdy.client import ClientConnection


class Sent:
    """Records acknowledged bytes and reset streams."""

    def __init__(self) -> None:
        self.consumed_bytes = 0
        self.resets: list[int] = []

    def accept(self, channel: Channel) -> None:
        raise AssertionError("not called by any test")

    def room(self, channel: Channel) -> int:
        raise AssertionError("not called by any test")

    def put(self, channel: Channel, data: spdy.Buffer, *, fin: bool) -> None:
        raise AssertionError("not called by any test")

    def consumed(self, channel: Channel, count: int) -> None:
        self.consumed_bytes += count

    def reset(self, channel: Channel) -> None:
        self.resets.append(channel.id)


class Table:
    """A table, and the client whose events it gets."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client, self.sent = ClientConnection(), Sent()
        self._wire = spdy.Connection()
        self.channels = ChannelTable(self._wire, lock=self.lock)
        self.changes = 0
        self.channels.on_change = self._count

    def _count(self) -> None:
        self.changes += 1

    def deliver(self) -> None:
        with self.lock:
            self.channels.receive(self._wire.receive_data(self.client.data_to_send()), sending=self.sent)

    def open(self) -> int:
        stream = self.client.open_stream([("streamtype", "data")])
        self.deliver()
        return stream

    def next(self) -> Channel | None:
        with self.lock:
            return self.channels.wait_opened(0)


def test_each_opened_stream_is_returned_once() -> None:
    table = Table()
    stream = table.open()
    channel = table.next()

    assert channel is not None
    assert (channel.id, channel.header("streamtype")) == (stream, "data")
    assert table.next() is None
    assert table.channels.all() == [channel]


def test_a_stream_reset_before_it_was_returned_is_forgotten() -> None:
    table = Table()
    table.client.reset(table.open())
    table.deliver()

    assert table.next() is None
    assert table.channels.all() == []


def test_refused_streams_are_reset() -> None:
    table = Table()
    waiting = table.open()
    with table.lock:
        table.channels.refuse_new()
        table.channels.refuse_opened()
    table.open()

    assert table.next() is None
    assert table.sent.resets == [waiting]


def test_on_change_is_called_once_for_each_read() -> None:
    table = Table()
    stream = table.open()
    assert table.changes == 1
    for _ in range(3):
        table.client.send_data(stream, b"queued")
    table.deliver()

    assert table.changes == 2


def test_dropped_bytes_are_not_a_change() -> None:
    table = Table()
    stream = table.open()
    channel = table.next()
    assert channel is not None
    channel.abandon()
    before = table.changes
    table.client.send_data(stream, b"dropped")
    table.deliver()

    assert (table.changes, table.sent.consumed_bytes) == (before, 7)


def test_the_first_end_reason_is_kept() -> None:
    table = Table()
    table.open()
    channel = table.next()
    assert channel is not None
    with table.lock:
        table.channels.terminate("the client has gone")
        table.channels.terminate("the server stops")

    assert table.channels.end_reason == "the client has gone"
    with pytest.raises(Cancelled, match="the client has gone"):
        channel.read()
    with pytest.raises(Cancelled, match="the client has gone"):
        table.next()
