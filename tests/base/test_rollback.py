"""Undos run in reverse, stop at the first failure, and ignore the client's deadline."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.base.rollback import UNDO_SECONDS, Rollback
from shim.domain.errors import ShimError


class Steps:
    """The steps that were undone, in order."""

    def __init__(self) -> None:
        self.undone: list[str] = []

    def undo(self, name: str) -> Callable[[], None]:
        return lambda: self.undone.append(name)

    def fail(self, name: str) -> Callable[[], None]:
        def failing() -> None:
            self.undone.append(name)
            raise ShimError(f"{name} is stuck")

        return failing


@pytest.fixture
def steps() -> Steps:
    return Steps()


def run(*undos: tuple[str, Callable[[], object]], error: BaseException, commit: bool = False) -> None:
    """Register `undos` in order, and then fail."""
    with Rollback("run of pod p") as rollback:
        for words, action in undos:
            rollback.undo(words, action)
        if commit:
            rollback.commit()
        raise error


def test_committed_steps_are_not_undone(steps: Steps) -> None:
    with Rollback("run of pod p") as rollback:
        rollback.undo("container", steps.undo("container"))
        rollback.commit()
    assert steps.undone == []


@pytest.mark.parametrize("error", [ShimError("full"), ValueError(), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_an_error_undoes_in_reverse_and_is_raised(steps: Steps, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        run(("container", steps.undo("container")), ("netns", steps.undo("netns")), error=error)
    assert caught.value is error
    assert steps.undone == ["netns", "container"]


def test_a_block_left_without_commit_is_undone(steps: Steps) -> None:
    with Rollback("run of pod p") as rollback:
        rollback.undo("container", steps.undo("container"))
    assert steps.undone == ["container"]


def test_an_error_after_the_commit_undoes_nothing(steps: Steps) -> None:
    with pytest.raises(ShimError, match="too late"):
        run(("container", steps.undo("container")), error=ShimError("too late"), commit=True)
    assert steps.undone == []


def test_steps_before_a_failed_undo_are_not_undone(steps: Steps) -> None:
    with capture_logs() as logs, pytest.raises(ShimError, match="no address left") as caught:
        run(
            ("checkpoint", steps.undo("checkpoint")),
            ("network", steps.fail("network")),
            ("netns", steps.undo("netns")),
            error=ShimError("no address left"),
        )
    assert steps.undone == ["netns", "network"]
    assert caught.value.__notes__ == ["undo of network failed: network is stuck"]
    [line] = logs
    assert line["log_level"] == "warning"
    assert (line["operation"], line["undo"], str(line["error"])) == ("run of pod p", "network", "network is stuck")


def test_a_failed_undo_without_an_error_is_logged(steps: Steps) -> None:
    with capture_logs() as logs, Rollback("run of pod p") as rollback:
        rollback.undo("network", steps.fail("network"))
    assert [line["undo"] for line in logs] == ["network"]


def test_undos_run_although_the_client_has_cancelled() -> None:
    client = deadline.Scope(seconds=0)
    client.cancel()
    seen: list[deadline.Scope] = []
    with deadline.entered(client), pytest.raises(ShimError, match="gone"):
        run(("container", lambda: seen.append(deadline.current())), error=ShimError("gone"))
    [scope] = seen
    assert not scope.cancelled
    left = scope.remaining()
    assert left is not None
    assert UNDO_SECONDS - 60 < left <= UNDO_SECONDS
