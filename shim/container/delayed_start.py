"""Containers that Docker starts late: after its call has failed, or the server that asked for it was killed."""

from collections.abc import Callable

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deferred_checks import LOOK_SECONDS
from shim.domain.errors import NotFound
from shim.runtime import Runtime


def apply_when_running(rt: Runtime, container_id: str, *, act: Callable[[], None]) -> bool:
    """Do `act` if a container runs by now, and say whether it has been done or never will be.

    For `shim.base.deferred_checks`: reads memory alone until it runs. `act` holds its limits, as a start and an update
    do. Unavailable or DeadlineExceeded while the view cannot answer: what it knew last says nothing of now.
    """
    with deadline.bound(0):
        try:
            record = rt.view.container(container_id)
        except NotFound:
            return True
    if record.life.state == pb.CONTAINER_EXITED:
        return True
    if not record.life.pid:
        return False
    with deadline.bound(LOOK_SECONDS), rt.locks.limits(record.id):
        act()
    return True
