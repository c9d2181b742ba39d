"""A waker ends a poll, and does nothing after it is closed."""

import os
import select

from shim.base.wakeup import Waker


def is_readable(waker: Waker) -> bool:
    return bool(select.select([waker], [], [], 0)[0])


def test_a_waker_is_readable_from_wake_to_drain() -> None:
    with Waker() as waker:
        assert not is_readable(waker)
        waker.wake()
        waker.wake()
        assert is_readable(waker)
        waker.drain()
        assert not is_readable(waker)


def test_a_drain_without_a_wake_does_not_block() -> None:
    with Waker() as waker:
        waker.drain()


def test_a_wake_after_close_does_not_write_to_another_file() -> None:
    waker = Waker()
    number = waker.fileno()
    waker.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert other == number  # the kernel takes the lowest free number
        waker.wake()
        assert not select.select([other], [], [], 0)[0]
    finally:
        os.close(other)
    waker.close()
    assert waker.fileno() == -1
