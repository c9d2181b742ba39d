"""Who changes a container: start, late start, update and recovery take turns, and each sees what the last one left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deferred_checks import CHECK_SECONDS
from shim.domain.errors import NotFound
from shim.runtime import Runtime
from shim.view.records import ContainerRecord

log = structlog.get_logger(__name__)


@contextmanager
def changing(rt: Runtime, container_id: str) -> Iterator[ContainerRecord]:
    """Hold off other changes of a container inside the block, and yield its record as it is then.

    It is read again once no other change is under way, since that may have started or ended it. Raise NotFound for an
    unknown id, also of a container that was removed in the meantime. A stop or removal does not wait: it may come at
    any time inside the block.
    """
    known = rt.view.container(container_id).id
    with rt.locks.limits(known):
        yield rt.view.container(known)


def apply_when_running(rt: Runtime, container_id: str, *, apply: Callable[[ContainerRecord], None]) -> bool:
    """Call `apply` with a container that Docker starts late, if it runs by now.

    Return whether that has been done, or never will be, since the container has ended or is gone. Docker starts one
    late after its call has failed, or after the server that asked for it was killed.

    For `shim.base.deferred_checks`: reads memory alone until the container runs. Raise Unavailable or DeadlineExceeded
    while the view cannot answer: its last state may be out of date.
    """
    try:
        with deadline.bound(0):
            state = rt.view.container(container_id).state
        if state.phase == pb.CONTAINER_EXITED:
            return True
        if not state.pid:
            return False
        with deadline.bound(CHECK_SECONDS), changing(rt, container_id) as record:
            apply(record)
    except NotFound:
        log.debug("delayed start: container is gone", container=container_id)
    return True
