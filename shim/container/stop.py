"""StopContainer."""

from contextlib import suppress

from shim.container.find import find_container
from shim.container.plugins import tell_stopped
from shim.container.teardown import ensure_killed
from shim.domain.errors import NotFound
from shim.runtime import Runtime

MAX_GRACE = 2**31 - 1
"""Seconds; Docker counts a grace period in nanoseconds, and one of centuries would overflow to none at all."""


def stop_container(rt: Runtime, *, container_id: str, timeout: int) -> None:
    """Stop a container: its stop signal, after `timeout` seconds SIGKILL, with 0 SIGKILL at once.

    Idempotent: an unknown id and a container that does not run are fine. No lock is held during the grace period, so
    a second call with a shorter one takes effect.
    """
    record = find_container(rt, container_id)
    if record is None or not record.state.may_run:
        return
    if timeout == 0:
        ensure_killed(rt, record.id)
    else:
        with suppress(NotFound):  # removed during the grace period
            rt.engine.stop_container(record.id, grace=min(timeout, MAX_GRACE))
        rt.view.refresh_exited(record.id)
    tell_stopped(rt, record)
