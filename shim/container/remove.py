"""RemoveContainer."""

from shim.container.find import find_container
from shim.container.plugins import tell_stopped
from shim.container.teardown import ensure_killed, ensure_removed
from shim.hooks.containers import container_is_removed
from shim.runtime import Runtime


def remove_container(rt: Runtime, *, container_id: str) -> None:
    """Remove a container, running or not, with its anonymous volumes. Idempotent; an unknown id is ignored.

    The kubelet removes the CRI log.
    """
    record = find_container(rt, container_id)
    if record is None:
        return
    if record.state.may_run:
        ensure_killed(rt, record.id)  # waits until the last output is copied
    tell_stopped(rt, record)
    container_is_removed(rt, record)
    ensure_removed(rt, record.id)
