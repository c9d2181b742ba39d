import pytest

from shim.streaming.spdy.errors import NotAllowed
from shim.streaming.spdy.flow import INITIAL_WINDOW, MAX_WINDOW, Account, ReceiveWindow, SendWindow


def test_the_initial_window_is_64_kib() -> None:
    assert SendWindow().left == INITIAL_WINDOW == 65536


def test_a_send_window_may_become_negative_and_recover() -> None:
    window = SendWindow(65536)
    window.spend(60 * 1024)
    assert window.widen(16 * 1024 - 65536)  # the example of 2.6.8: the initial window shrinks to 16 KiB
    assert window.left == -44 * 1024
    assert window.widen(44 * 1024 + 1)
    assert window.left == 1


def test_a_send_window_has_a_largest_size() -> None:
    window = SendWindow(0)
    assert window.widen(MAX_WINDOW)
    assert not window.widen(1)


def test_a_receive_window_knows_when_it_is_exceeded() -> None:
    window = ReceiveWindow(10)
    assert window.charge(10)
    assert not window.charge(1)


def test_a_receive_window_is_given_back_in_halves() -> None:
    window = ReceiveWindow(10)
    assert window.charge(10)
    assert [window.release(count) for count in (4, 1, 1, 4)] == [0, 5, 0, 5]
    assert window.charge(10)


def test_an_account_does_not_consume_what_was_not_delivered() -> None:
    account = Account()
    account.owed, account.held = 10, 4
    account.consume(3)
    assert (account.owed, account.held) == (7, 1)
    for count in (2, -1):
        with pytest.raises(NotAllowed, match="acknowledging"):
            account.consume(count)
