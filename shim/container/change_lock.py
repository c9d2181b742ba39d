"""Serialises changes of a container: start, late start, update and recovery each see the result of the previous."""

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
def hold_for_change(rt: Runtime, container_id: str) -> Iterator[ContainerRecord]:
    """Exclude other changes of a container inside the block; yield its record, read under the lock.

    Stop and removal take no lock: they may happen at any time inside the block. Raise NotFound for an unknown id, also
    if the container was removed while waiting for the lock.
    """
    known = rt.view.container(container_id).id
    with rt.locks.limits(known):
        yield rt.view.container(known)


def apply_when_running(rt: Runtime, container_id: str, *, apply: Callable[[ContainerRecord], None]) -> bool:
    """Call `apply` with a container that Docker starts late, if it runs by now.

    Docker may start a container after the call has failed, or after the server that called was killed. Return True if
    `apply` was called, or never will be because the container has ended or is gone.

    Meant for `shim.base.deferred_checks`: reads only memory until the container runs. Raise Unavailable or
    DeadlineExceeded while the view cannot answer, since its last state may be out of date.
    """
    try:
        with deadline.bound(0):
            state = rt.view.container(container_id).state
        if state.phase == pb.CONTAINER_EXITED:
            return True
        if not state.pid:
            return False
        with deadline.bound(CHECK_SECONDS), hold_for_change(rt, container_id) as record:
            apply(record)
    except NotFound:
        log.debug("delayed start: container is gone", container=container_id)
    return True
