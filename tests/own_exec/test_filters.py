from pathlib import Path
from types import SimpleNamespace

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, DeadlineExceeded, ShimError, Unavailable
from shim.own_exec.container import Unsuited
from shim.own_exec.filters import Filters

CONTAINER = SimpleNamespace(seccomp=b"{}", runc=Path("/usr/bin/runc"))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), Unavailable("no program"), ShimError("gone"), DeadlineExceeded("slow")]
)
def test_a_filter_that_cannot_be_read_leaves_the_exec_to_docker(error: Exception) -> None:
    def fail(*_: object) -> bytes:
        raise error

    with pytest.raises(Unsuited, match=str(error.args[-1])):
        Filters(fail).of(CONTAINER)  # type: ignore[arg-type] # all that is read


def test_a_cancelled_client_ends_the_read_of_a_filter() -> None:
    def fail(*_: object) -> bytes:
        deadline.current().cancel()
        raise Cancelled("gone")

    with pytest.raises(Cancelled), deadline.entered(deadline.Scope()):
        Filters(fail).of(CONTAINER)  # type: ignore[arg-type] # all that is read
