import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.base.gate import Gate
from shim.domain.errors import Cancelled, DeadlineExceeded


def test_many_share_it() -> None:
    gate = Gate()
    with gate.shared(what="one"), gate.shared(what="another"):
        pass


def test_it_is_not_held_alone_while_it_is_shared() -> None:
    gate = Gate()
    with gate.shared(what="one"), gate.alone(seconds=0.01) as is_alone:
        assert not is_alone
    with gate.alone(seconds=0) as is_alone:
        assert is_alone


def test_sharing_waits_for_a_holder_that_is_alone() -> None:
    gate, order = Gate(), []

    def share() -> None:
        with gate.shared(what="one"):
            order.append("shared")

    with ThreadPoolExecutor() as pool:
        with gate.alone(seconds=0):
            waiting = pool.submit(share)
            order.append("alone")
        waiting.result(10)
    assert order == ["alone", "shared"]


def test_it_is_free_again_after_a_failure() -> None:
    gate = Gate()
    with pytest.raises(ValueError, match="x"), gate.alone(seconds=0):
        raise ValueError("x")
    with gate.shared(what="one"):
        pass


def test_the_wait_ends_with_the_scope() -> None:
    gate = Gate()
    with gate.alone(seconds=0):
        with deadline.bound(0.01), pytest.raises(DeadlineExceeded, match="run it: "), gate.shared(what="run it"):
            pass
        scope = deadline.Scope()
        threading.Timer(0.01, scope.cancel).start()
        with deadline.entered(scope), pytest.raises(Cancelled, match="run it: "), gate.shared(what="run it"):
            pass
    with gate.alone(seconds=0) as is_alone:
        assert is_alone
