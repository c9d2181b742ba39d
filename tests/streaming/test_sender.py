"""The sender without the session's thread."""

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from shim.domain.errors import Cancelled
from shim.streaming import spdy
from shim.streaming.channel import Channel
from shim.streaming.channel_table import ChannelTable
from shim.streaming.pipe import Pipe
from shim.streaming.sender import Sender
from tests.streaming.client import SECONDS
from tests.streaming.spdy.client import ClientConnection

PIECE = bytes(16384)


class Half:
    """A sender and its channels on a connection; `far` is the client's end."""

    def __init__(self) -> None:
        ours, self.far = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.far.settimeout(SECONDS)
        self.lock = threading.Lock()
        self.wire, self.client = spdy.Connection(), ClientConnection()
        self.channels = ChannelTable(self.wire, lock=self.lock)
        self.sender = Sender(Pipe(ours), self.wire, self.channels)

    def open_channel(self) -> Channel:
        self.client.open_stream([("streamtype", "data")])
        with self.lock:
            self.channels.receive(self.wire.receive_data(self.client.data_to_send()), sending=self.sender)
            channel = self.channels.wait_opened(0)
        assert channel is not None
        channel.accept()
        return channel

    def fill(self, channel: Channel) -> None:
        """Write until the connection is full."""
        while self.sender.sent_all:
            channel.write(PIECE)


@pytest.fixture
def half() -> Iterator[Half]:
    made = Half()
    yield made
    made.sender.close()
    made.far.close()


def test_the_writer_sends_bytes_that_the_connection_takes_at_once(half: Half) -> None:
    half.sender.open()
    half.open_channel().write(b"at once")

    assert half.sender.sent_all
    assert b"at once" in half.far.recv(1 << 16)


def test_the_sessions_thread_sends_the_rest(half: Half) -> None:
    half.sender.open()
    channel = half.open_channel()
    half.sender.prepare_wait()
    half.fill(channel)

    assert half.sender.wait(SECONDS) == 0  # woken to poll for room in the connection
    half.sender.prepare_wait()
    assert half.sender.polled & select.POLLOUT
    while not half.sender.sent_all:
        assert half.far.recv(1 << 16)
        assert half.sender.wait(SECONDS) & select.POLLOUT
        half.sender.flush()


def test_a_wake_before_the_wait_is_not_lost(half: Half) -> None:
    half.sender.open()
    half.sender.prepare_wait()
    half.sender.wake()

    assert half.sender.wait(SECONDS) == 0


def test_a_writer_without_room_is_woken_when_the_client_reads(half: Half) -> None:
    half.sender.open()
    channel = half.open_channel()
    changes = threading.Event()
    half.channels.on_change = changes.set
    with half.lock:
        while room := half.sender.room(channel):
            half.sender.put(channel, bytes(min(room, len(PIECE))), fin=False)
    changes.clear()
    while not changes.is_set():
        assert half.far.recv(1 << 16)
        with half.lock:
            half.sender.flush()


def test_an_ended_session_sends_nothing(half: Half) -> None:
    half.sender.open()
    channel = half.open_channel()
    half.far.recv(1 << 16)
    with half.lock:
        half.channels.terminate("the server stops")
    with pytest.raises(Cancelled, match="the server stops"):
        channel.write(b"late")
    channel.reset()
    half.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        half.far.recv(1)


def test_a_wake_after_close_does_nothing(half: Half) -> None:
    half.sender.open()
    half.sender.close()
    half.sender.close()
    half.sender.wake()
