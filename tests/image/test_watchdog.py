"""The watchdog barks at silence, and at nothing else."""

import threading
import time

from shim.image.watchdog import Watchdog

SECONDS = 10.0


def test_barks_when_never_fed() -> None:
    barked = threading.Event()
    with Watchdog(seconds=0.01, bark=barked.set) as watchdog:
        assert barked.wait(SECONDS)
        assert watchdog.barked


def test_is_silent_while_fed() -> None:
    barks: list[str] = []
    with Watchdog(seconds=1.0, bark=lambda: barks.append("bark")) as watchdog:
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            threading.Event().wait(0.05)
            watchdog.feed()
    assert not watchdog.barked
    assert barks == []


def test_rests_until_it_is_fed_again() -> None:
    barked = threading.Event()
    with Watchdog(seconds=0.05, bark=barked.set) as watchdog:
        watchdog.feed(rest=True)
        assert not barked.wait(0.2)
        watchdog.feed()
        assert barked.wait(SECONDS)


def test_zero_never_barks() -> None:
    barked = threading.Event()
    with Watchdog(seconds=0, bark=barked.set) as watchdog:
        watchdog.feed()
        assert not barked.wait(0.05)
    assert not watchdog.barked


def test_leaving_ends_it_at_once() -> None:
    began = time.monotonic()
    with Watchdog(seconds=60, bark=lambda: None) as watchdog:
        pass
    assert time.monotonic() - began < SECONDS
    assert not watchdog.barked
