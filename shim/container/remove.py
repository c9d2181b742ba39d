"""RemoveContainer."""

from shim.container.removal import ensure_removed
from shim.errors import NotFound
from shim.runtime import Runtime


def remove_container(rt: Runtime, *, container_id: str) -> None:
    """Remove a container, running or not, with its anonymous volumes. An unknown id is fine.

    Its log stays: the kubelet removes logs.
    """
    try:
        record = rt.view.container(container_id)
    except NotFound:
        return
    ensure_removed(rt, record.id)
