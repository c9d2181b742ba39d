"""OpenSSL gets one call at a time for a connection, though a thread sends while another receives."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from shim.streaming.pipe import TlsPipe


class Exclusive:
    """A connection whose calls take a moment, and fail during another call."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self.calls = 0

    def _call(self) -> None:
        assert self._busy.acquire(blocking=False), "two calls at a time"
        threading.Event().wait(0.001)
        self.calls += 1
        self._busy.release()

    def setblocking(self, _wanted: bool) -> None:
        """Do nothing."""

    def recv(self, most: int) -> bytes:
        self._call()
        return b"x" * most

    def send(self, data: bytes) -> int:
        self._call()
        return len(data)

    def pending(self) -> int:
        self._call()
        return 0


def test_calls_exclude_each_other() -> None:
    connection = Exclusive()
    pipe = TlsPipe(cast("Any", connection))

    def receive() -> None:
        for _ in range(50):
            assert pipe.receive(3) == b"xxx"
            assert not pipe.holds_data

    def send() -> None:
        for _ in range(50):
            assert pipe.send([memoryview(b"data")]) == 4

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(receive), pool.submit(send)]:
            each.result()
    assert connection.calls == 150
