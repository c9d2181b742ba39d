"""Recorded bytes of clients built on Go's spdystream, and output to clients without flow control.

The bytes were recorded from kubectl 1.33 with WebSockets off. It compresses with level 9 and a window of 32 KiB, sends
a DATA frame for each write, closes by an empty DATA frame with FIN, and knows neither SETTINGS nor WINDOW_UPDATE.
"""

import pytest

from shim.streaming.spdy import (
    ConnectionTerminated,
    DataReceived,
    GoAwayStatus,
    ResetStatus,
    StreamHalfClosed,
    StreamOpened,
    StreamReset,
)
from tests.streaming.spdy.wire import Connection, goaway, joined, rst_stream

EXEC = [  # echo hello | kubectl exec -i p -- cat
    "80030001 00000029 00000001 00000000 0000 78f9e3c6a7c2 6260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff",
    "80030001 00000017 00000003 00000000 0000 c22e555c92929907000000ffff",
    "80030001 00000019 00000005 00000000 0000 c22ac5565c92925f5a02000000ffff",
    "80030001 00000015 00000007 00000000 0000 c229975a5404000000ffff",
    "00000003 00000006 68656c6c6f0a",
    "00000003 01000000",
]

PORT_FORWARD = [  # two connections to the forwarded port
    "80030001 0000003d 00000001 00000000 0000 78f9e3c6a7c2 02253a060606ce2248fc",  # the rest follows in the next read
    "6482d22da30138e59514a526e6420b17d65450d0430aea2250a266b23000000000ffff",
    "00000001 01000000",
    "80030001 00000018 00000003 00000000 0000 22522ba85c4a44d509000000ffff",
    "00000003 00000005 4141414141",
    "00000003 01000000",
    "80030001 00000018 00000005 00000000 0000 82ea24ca0a54e30d01000000ffff",
    "80030001 00000016 00000007 00000000 0000 c26aa911518601000000ffff",
    "00000005 01000000",
]


def played(lines: list[str], *, size: int = 1 << 20) -> tuple[Connection, list[object]]:
    """Return a server that got these bytes in chunks and accepted each stream, and its events."""
    wire = bytes.fromhex("".join(lines))
    connection, happened = Connection(), []
    for at in range(0, len(wire), size):
        for event in connection.receive_data(wire[at : at + size]):
            happened.append(event)
            if isinstance(event, StreamOpened):
                connection.reply(event.stream_id)
            if isinstance(event, DataReceived):
                connection.acknowledge(event.stream_id, len(event.data))
    return connection, list(joined(happened))


def opened(stream_id: int, **headers: str) -> StreamOpened:
    return StreamOpened(stream_id, tuple(headers.items()))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_recorded_exec_is_served(size: int) -> None:
    connection, happened = played(EXEC, size=size)
    assert happened == [
        opened(1, streamtype="error"),
        opened(3, streamtype="stdin"),
        opened(5, streamtype="stdout"),
        opened(7, streamtype="stderr"),
        (3, b"hello\n"),
        StreamHalfClosed(3),
    ]
    connection.data_to_send()
    connection.send_data(5, b"hello\n")
    connection.send_data(1, b'{"metadata":{},"status":"Success"}')
    for stream_id in (1, 3, 5, 7):
        connection.send_data(stream_id, b"", fin=True)
    connection.goaway()
    assert connection.data_to_send().endswith(bytes.fromhex("00000007 01000000") + goaway(7, 0))
    assert not connection.closed  # three streams are half-closed; the client then resets each


def test_kubectl_ends_an_exec_by_resetting_its_streams() -> None:
    connection, _ = played(EXEC)
    resets = b"".join(rst_stream(stream_id, 5) for stream_id in (1, 5, 7))
    connection.send_data(3, b"", fin=True)
    assert connection.receive_data(resets + goaway(0, 0)) == [
        *(StreamReset(stream_id, ResetStatus.CANCEL, by_peer=True) for stream_id in (1, 5, 7)),
        ConnectionTerminated(GoAwayStatus.OK, "all streams ended after GOAWAY"),
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_recorded_port_forward_is_served(size: int) -> None:
    _, happened = played(PORT_FORWARD, size=size)
    assert [tuple(sorted(event.headers)) for event in happened if isinstance(event, StreamOpened)] == [
        (("port", "80"), ("requestid", "0"), ("streamtype", "error")),
        (("port", "80"), ("requestid", "0"), ("streamtype", "data")),
        (("port", "80"), ("requestid", "1"), ("streamtype", "error")),
        (("port", "80"), ("requestid", "2"), ("streamtype", "error")),
    ]
    assert [event for event in happened if not isinstance(event, StreamOpened)] == [
        StreamHalfClosed(1),
        (3, b"AAAAA"),
        StreamHalfClosed(3),
        StreamHalfClosed(5),
    ]


def test_large_output_does_not_wait_for_windows_that_never_open() -> None:
    connection, _ = played(EXEC)
    sent = 0
    while sent < 64 << 20:
        room = connection.send_window(5)
        assert room
        connection.send_data(5, bytes(room))
        sent += room
        connection.buffers_to_send()


def test_large_input_is_accepted_whatever_the_size_of_its_frames() -> None:
    connection, _ = played(EXEC[:4])
    left = 16 << 20
    head = bytes.fromhex("00000003 00ffffff") + bytes(0xFFFFFF) + bytes.fromhex("00000003 01000001") + bytes(1)
    for at in range(0, len(head), 64 * 1024):
        assert connection.wants_data
        for event in connection.receive_data(head[at : at + 64 * 1024]):
            if isinstance(event, DataReceived):
                left -= len(event.data)
                connection.acknowledge(3, len(event.data))
    assert left == 0
