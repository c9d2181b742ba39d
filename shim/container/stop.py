"""StopContainer."""

from contextlib import suppress

from shim.container.find import find_container
from shim.container.plugins import tell_stopped
from shim.container.teardown import ensure_killed, forbid_restarts
from shim.domain.errors import NotFound
from shim.runtime import Runtime

MAX_GRACE = 2**31 - 1
"""Maximum grace period in seconds. Docker counts it in nanoseconds, so centuries would overflow to no grace period."""


def stop_container(rt: Runtime, *, container_id: str, timeout: int) -> None:
    """Send the stop signal, and SIGKILL after `timeout` seconds; with 0, send SIGKILL at once. Wait for the end.

    Idempotent; an unknown id or a stopped container is ignored. No lock is held during the grace period, so a second
    call with a shorter timeout takes effect.
    """
    record = find_container(rt, container_id)
    if record is None:
        return
    if not record.state.may_run:
        forbid_restarts(rt, record.id)
        return
    if timeout == 0:
        ensure_killed(rt, record.id)
    else:
        with suppress(NotFound):  # removed during the grace period
            rt.engine.stop_container(record.id, grace=min(timeout, MAX_GRACE))
        rt.view.refresh_exited(record.id)
        forbid_restarts(rt, record.id)
    tell_stopped(rt, record)
