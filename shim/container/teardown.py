"""Kills, removes and creates pause and application containers in Docker, which other clients may change meanwhile."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import structlog

from shim.base import deadline
from shim.base.deferred_checks import CHECK_SECONDS, LATE_SECONDS
from shim.base.gather import gather
from shim.container import restoring
from shim.dockerd.image_store import container_root
from shim.domain.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ShimError,
    Unavailable,
)
from shim.domain.labels import created_as
from shim.domain.names import with_random_suffix
from shim.engine.errors import LogOptionsClash, NameConflict, RemovalInProgress
from shim.engine.interface import JsonObject
from shim.netns.syscalls import unmount
from shim.oci import orders
from shim.oci.user_namespaces import orders_directory
from shim.runtime import Runtime
from shim.spec.defaults import with_other_log_driver
from shim.view.records import ContainerRecord
from shim.view.translate import record_from_inspect

log = structlog.get_logger(__name__)


def ensure_killed(rt: Runtime, container_id: str) -> None:
    """Kill a container, and wait for its end and its last output. An unknown or stopped container is fine."""
    with suppress(NotFound, FailedPrecondition):
        # Docker answers SIGKILL only after the end of the container.
        rt.engine.kill_container(container_id, signal="SIGKILL")
    rt.view.refresh_exited(container_id)


def ensure_all_killed(rt: Runtime, container_ids: Sequence[str]) -> None:
    """Kill several containers in parallel."""
    gather([partial(ensure_killed, rt, container_id) for container_id in container_ids])


def ensure_removed(rt: Runtime, container_id: str) -> None:
    """Remove a container by force, or wait for its removal in progress. A container that is gone is fine.

    If Docker does not answer, it may remove the container nevertheless. No RemoveContainer will then name it again, so
    a deferred check removes the server's files of the container.
    """
    try:
        _remove(rt, container_id)
    except (Unavailable, DeadlineExceeded):
        what = f"files of container {container_id}, whose removal Docker did not answer"
        rt.deferred_checks.add(partial(_clear, rt, container_id), what=what, seconds=LATE_SECONDS)
        raise
    rt.view.forget(container_id)
    _delete_files(rt, container_id)
    _remove_left_root(rt, container_id)


def _remove(rt: Runtime, container_id: str) -> None:
    try:
        rt.engine.remove_container(container_id)
    except NotFound:
        pass
    except RemovalInProgress:
        rt.engine.wait_removed(container_id)


def _clear(rt: Runtime, container_id: str) -> bool:
    """Delete the server's files of a container that is gone; return False while it exists."""
    with deadline.bound(CHECK_SECONDS):
        try:
            rt.engine.inspect_container(container_id)
        except NotFound:
            _delete_files(rt, container_id)
            return True
        return False


def _delete_files(rt: Runtime, container_id: str) -> None:
    rt.limits.delete(container_id)
    restoring.forget(rt, container_id)
    directory = orders_directory(rt.facts.info())
    if directory is not None:
        orders.delete(directory, container_id)


def _remove_left_root(rt: Runtime, container_id: str) -> None:
    """Unmount the root of a removed container if a dockerd that was killed during its start left it mounted.

    With the containerd image store, the next dockerd does not unmount it, not even when it removes the container.
    """
    path = container_root(rt.facts.info(), container_id)
    if path is None or not path.is_dir():
        return
    try:
        if path.is_mount():
            unmount(path)
        path.rmdir()
    except OSError as error:
        log.warning("failed to unmount root of removed container", container=container_id, error=error)


def ensure_all_removed(rt: Runtime, container_ids: Sequence[str]) -> None:
    """Remove several containers in parallel."""
    gather([partial(ensure_removed, rt, container_id) for container_id in container_ids])


def create_under_name(rt: Runtime, *, name: str, body: JsonObject) -> str:
    """Create a container and return its id, even if the name is taken.

    If a stopped container of a pod was created under this name, it is a leftover of an abandoned attempt and is
    removed; if it runs, raise AlreadyExists. Any other holder keeps the name, and the new container's name gets a
    suffix: a user's container, a renamed container, a container that cannot be removed, or a name whose container
    Docker does not find (its index of names survives a crash).
    """
    try:
        return _create(rt, name=name, body=body)
    except NameConflict as conflict:
        log.info("container name in use", name=name, holder=conflict.holder)
        if _remove_dead_holder(rt, conflict.holder, name=name):
            return _create(rt, name=name, body=body)
        return _create(rt, name=with_random_suffix(name), body=body)


def _create(rt: Runtime, *, name: str, body: JsonObject) -> str:
    try:
        return rt.engine.create_container(name=name, body=body)
    except LogOptionsClash:
        # Not remembered: Docker may have other log options after a restart, and checks them first at each create.
        return rt.engine.create_container(name=name, body=with_other_log_driver(rt.config, body))


def _remove_dead_holder(rt: Runtime, holder: str, *, name: str) -> bool:
    try:
        found = rt.engine.inspect_container(holder)
    except NotFound as error:
        log.warning("failed to inspect container that holds the name", holder=holder, error=error)
        return False
    record = record_from_inspect(found, previous=None)
    if record is None or created_as(found.config.labels or {}, name=name) != name:
        return False
    if found.state.running and isinstance(record, ContainerRecord):
        raise AlreadyExists(f"create container {name}: container {found.id} runs under this name")
    return not found.state.running and remove_leftover(rt, found.id)


def remove_leftover(rt: Runtime, container_id: str) -> bool:
    """Remove a container of an abandoned attempt; return whether that succeeded. The next attempt works without."""
    try:
        ensure_removed(rt, container_id)
    except ShimError as error:
        log.warning("failed to remove container of an abandoned attempt", container=container_id, error=error)
        return False
    return True
