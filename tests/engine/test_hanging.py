"""The error of a call that Docker leaves unanswered says so, and the client's own end stays the client's."""

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, DeadlineExceeded
from shim.engine.hanging import answered_within
from tests.fakes.engine import FakeEngine


def test_a_call_without_an_answer_is_named(engine: FakeEngine) -> None:
    with (
        engine.held("ping"),
        pytest.raises(DeadlineExceeded, match=r"ping docker: docker did not answer within 0\.01 s"),
        answered_within(0.01, what="ping docker"),
    ):
        engine.ping()


def test_the_deadline_of_the_client_is_no_fault_of_docker(engine: FakeEngine) -> None:
    with (
        engine.held("ping"),
        deadline.bound(0.01),
        pytest.raises(DeadlineExceeded, match="ping docker: the deadline of the request has passed"),
        answered_within(30, what="ping docker"),
    ):
        engine.ping()


def test_a_client_that_leaves_ends_the_call(engine: FakeEngine) -> None:
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled), answered_within(30, what="ping docker"):
        engine.ping()
