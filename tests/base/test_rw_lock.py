import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.base.rw_lock import RwLock
from shim.domain.errors import Cancelled, DeadlineExceeded


def test_several_threads_can_share_the_lock() -> None:
    lock = RwLock()
    with lock.shared(what="first"), lock.shared(what="second"):
        pass


def test_exclusive_access_is_refused_while_the_lock_is_shared() -> None:
    lock = RwLock()
    with lock.shared(what="share"), lock.exclusive(seconds=0.01) as is_exclusive:
        assert not is_exclusive
    with lock.exclusive(seconds=0) as is_exclusive:
        assert is_exclusive


def test_sharing_waits_for_the_exclusive_holder() -> None:
    lock, order = RwLock(), []

    def share() -> None:
        with lock.shared(what="share"):
            order.append("shared")

    with ThreadPoolExecutor() as pool:
        with lock.exclusive(seconds=0):
            waiting = pool.submit(share)
            order.append("exclusive")
        waiting.result(10)
    assert order == ["exclusive", "shared"]


def test_the_lock_is_free_after_an_error_in_the_block() -> None:
    lock = RwLock()
    with pytest.raises(ValueError, match="x"), lock.exclusive(seconds=0):
        raise ValueError("x")
    with lock.shared(what="share"):
        pass


def test_the_wait_ends_with_the_current_scope() -> None:
    lock = RwLock()
    with lock.exclusive(seconds=0):
        with deadline.bound(0.01), pytest.raises(DeadlineExceeded, match="run it: "), lock.shared(what="run it"):
            pass
        scope = deadline.Scope()
        threading.Timer(0.01, scope.cancel).start()
        with deadline.entered(scope), pytest.raises(Cancelled, match="run it: "), lock.shared(what="run it"):
            pass
    with lock.exclusive(seconds=0) as is_exclusive:
        assert is_exclusive
