"""Kills, removes and creates pause and application containers, which other clients of Docker may change meanwhile."""

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
    """Kill a container, and wait for its end and its last output. An unknown or stopped container is ignored."""
    with suppress(NotFound, FailedPrecondition):
        # Docker answers SIGKILL only after the end of the container.
        rt.engine.kill_container(container_id, signal="SIGKILL")
    rt.view.refresh_exited(container_id)
    forbid_restarts(rt, container_id)


def forbid_restarts(rt: Runtime, container_id: str) -> None:
    """Take away the restart policy that a user has given to a stopped container: dockerd starts it when dockerd starts.

    An unknown container is ignored.
    """
    record = rt.view.last_known(container_id)
    if record is not None and record.state.restarts:
        with suppress(NotFound):
            rt.engine.update_container(record.id, body={"RestartPolicy": {"Name": "no"}})


def ensure_all_killed(rt: Runtime, container_ids: Sequence[str]) -> None:
    """Kill several containers in parallel."""
    gather([partial(ensure_killed, rt, container_id) for container_id in container_ids])


def ensure_removed(rt: Runtime, container_id: str) -> None:
    """Remove a container by force, or wait for its removal in progress. Idempotent; an unknown container is ignored.

    If Docker does not answer, it may still remove the container later. Then no RemoveContainer follows, so a deferred
    check removes the server's files of the container.
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
    """Unmount the root of a removed container, which dockerd leaves mounted if it is killed during the start.

    With the containerd image store, the next dockerd does not unmount it, even when it removes the container.
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

    If the name belongs to a pod's container that was created with it, the container is a leftover of an abandoned
    attempt: remove it, or raise AlreadyExists if it runs. Any other holder keeps the name, and the new container's name
    gets a suffix. Such a holder is a user's container, a renamed container, a container that cannot be removed, or a
    missing container whose name is still in Docker's index after a crash.
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
        # The refusal is not cached, because Docker may have other log options after a restart.
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
    """Remove a container of an abandoned attempt; log a failure. Return whether the container was removed."""
    try:
        ensure_removed(rt, container_id)
    except ShimError as error:
        log.warning("failed to remove container of an abandoned attempt", container=container_id, error=error)
        return False
    return True
