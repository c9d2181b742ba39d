"""Serialises changes of a container: start, late start, update and recovery."""

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

    Stop and removal take no lock, so they may happen at any time. Raise NotFound for an unknown id, also if the
    container was removed during the wait for the lock.
    """
    known = rt.view.container(container_id).id
    with rt.locks.limits(known):
        yield rt.view.container(known)


def apply_when_running(rt: Runtime, container_id: str, *, apply: Callable[[ContainerRecord], None]) -> bool:
    """Call `apply` with a container that Docker may start late, if it is running now.

    Docker may start a container after the call has failed, or after the calling server was killed. Return True if
    `apply` was called, or is not needed because the container has ended or is gone.

    Use it for `shim.base.deferred_checks`: it reads only memory until the container runs. Raise Unavailable or
    DeadlineExceeded while the view cannot answer, because its last state may be outdated.
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
