"""Reads are answered only between the end of a sync and the next disconnect."""

import threading

import pytest

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded, Unavailable
from shim.view.availability import Availability


def asked(changed: threading.Condition, availability: Availability) -> None:
    with changed:
        availability.wait_available()


def made(*, timeout: float = 30) -> tuple[threading.Condition, Availability]:
    changed = threading.Condition()
    return changed, Availability(changed, timeout=timeout)


def test_a_read_waits_for_the_sync() -> None:
    changed, availability = made()
    answered = threading.Event()

    def ask() -> None:
        asked(changed, availability)
        answered.set()

    asker = threading.Thread(target=ask)
    asker.start()
    with changed:
        epoch = availability.begin_sync()
    assert not answered.wait(0.02)
    with changed:
        assert availability.complete_sync(epoch)
    asker.join(10)
    assert answered.is_set()


def test_a_disconnect_refuses_reads_at_once_with_its_reason() -> None:
    changed, availability = made(timeout=deadline.LONGEST)
    with changed:
        availability.complete_sync(availability.begin_sync())
        availability.disconnect("no such socket")
        assert availability.outage == "no such socket"
    with pytest.raises(Unavailable, match="no such socket"):
        asked(changed, availability)


def test_a_disconnect_wakes_waiting_reads() -> None:
    changed, availability = made(timeout=deadline.LONGEST)
    refused: list[str] = []

    def ask() -> None:
        with pytest.raises(Unavailable) as caught:
            asked(changed, availability)
        refused.append(str(caught.value))

    asker = threading.Thread(target=ask, daemon=True)  # otherwise pytest would wait for it
    asker.start()
    with changed:
        availability.disconnect("no such socket")
    asker.join(10)
    assert refused == ["no such socket"]


def test_a_sync_that_ends_after_a_disconnect_does_not_count() -> None:
    changed, availability = made(timeout=0)
    with changed:
        epoch = availability.begin_sync()
        availability.disconnect("stream broke")
        assert not availability.complete_sync(epoch)
        again = availability.begin_sync()
        assert not availability.complete_sync(epoch)
    with pytest.raises(Unavailable, match="stream broke"):
        asked(changed, availability)
    with changed:
        assert availability.complete_sync(again)
    asked(changed, availability)


def test_a_read_waits_for_a_sync_up_to_the_timeout() -> None:
    changed, availability = made(timeout=0.01)
    with pytest.raises(Unavailable, match="not been built"):
        asked(changed, availability)


def test_the_wait_ends_with_the_request() -> None:
    changed, availability = made()
    with deadline.bound(0.01), pytest.raises(DeadlineExceeded):
        asked(changed, availability)


def test_a_read_may_shorten_the_timeout_but_not_extend_it() -> None:
    changed, availability = made(timeout=0.01)
    with changed, pytest.raises(Unavailable):
        availability.wait_available(timeout=deadline.LONGEST)
    changed, availability = made(timeout=deadline.LONGEST)
    with changed, pytest.raises(Unavailable):
        availability.wait_available(timeout=0)


def test_the_length_of_an_outage_is_measured() -> None:
    changed, availability = made()
    with changed:
        threading.Event().wait(0.02)
        assert availability.outage_seconds >= 0.02
        availability.complete_sync(availability.begin_sync())
        assert availability.outage_seconds == 0
        availability.disconnect("gone")
        threading.Event().wait(0.02)
        since = availability.outage_seconds
        availability.disconnect("still gone")
        availability.begin_sync()
        assert availability.outage_seconds >= since >= 0.02


def test_reads_raise_the_configured_refusal() -> None:
    class NotListed(Unavailable):
        pass

    changed = threading.Condition()
    with changed, pytest.raises(NotListed, match="no list yet"):
        Availability(changed, timeout=0, initially="no list yet", refusal=NotListed).wait_available()


def test_the_wait_for_the_first_connection_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.view.availability.CONNECT_SECONDS", 0.01)
    changed, availability = made(timeout=deadline.LONGEST)
    with pytest.raises(Unavailable, match="not been built"):
        asked(changed, availability)


def test_a_read_before_the_first_connection_waits_for_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.view.availability.CONNECT_SECONDS", 3.0)
    changed, availability = made()
    answered = threading.Event()

    def ask() -> None:
        asked(changed, availability)
        answered.set()

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    with changed:
        epoch = availability.begin_sync()
    assert not answered.wait(3.5)
    with changed:
        availability.complete_sync(epoch)
    assert answered.wait(10)
