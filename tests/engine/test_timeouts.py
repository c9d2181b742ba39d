"""The error of an unanswered call blames Docker, unless the client's scope has ended."""

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, DeadlineExceeded
from shim.engine.timeouts import answered_within
from tests.fakes.engine import FakeEngine


def test_a_call_without_an_answer_is_named(engine: FakeEngine) -> None:
    with (
        engine.held("ping"),
        pytest.raises(DeadlineExceeded, match=r"ping Docker: Docker did not answer within 0\.01 s"),
        answered_within(0.01, what="ping Docker"),
    ):
        engine.ping()


def test_a_deadline_of_the_client_does_not_blame_docker(engine: FakeEngine) -> None:
    with (
        engine.held("ping"),
        deadline.bound(0.01),
        pytest.raises(DeadlineExceeded, match="ping Docker: the deadline of the request has passed"),
        answered_within(30, what="ping Docker"),
    ):
        engine.ping()


def test_a_client_that_leaves_ends_the_call(engine: FakeEngine) -> None:
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled), answered_within(30, what="ping Docker"):
        engine.ping()
