"""Calls NRI plugins for a container: lets them change a new container, and notifies them of its end."""

from collections.abc import Sequence
from contextlib import ExitStack

import structlog

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.base.rollback import Rollback
from shim.container.restoring import CheckpointFiles
from shim.container.update import change_limits, update_others
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound, ShimError
from shim.hooks.adjustment import Changes, changes_of
from shim.hooks.containers import (
    OtherUpdates,
    container_has_been_created,
    container_has_stopped,
    container_is_created,
)
from shim.oci.cdi import DIRECTORIES
from shim.runtime import Runtime
from shim.spec.order import order_container, why_no_changes
from shim.view.records import ContainerRecord, Key, Record, SandboxRecord

log = structlog.get_logger(__name__)


def hide_from_clients(rt: Runtime, key: Key, *, until: ExitStack) -> None:
    """Hide a new container from clients until the stack ends, if plugins must be notified first.

    Plugins may connect at any time, so the container's events are deferred in any case.
    """
    until.enter_context(rt.view.defer_events(key))
    until.enter_context(rt.unseen.making(key, hidden=lambda: rt.nri.active))


def finish_with_plugins(
    rt: Runtime,
    created: Record | None,
    *,
    sandbox: SandboxRecord,
    mounts: Sequence[pb.Mount],
    runtime: str,
    rollback: Rollback,
    checkpoint: CheckpointFiles | None = None,
) -> OtherUpdates:
    """Notify plugins of a container that Docker has created, apply their changes, and write its OCI runtime order.

    The container continues from `checkpoint`, if any. Return the updates of other containers that the plugins request.
    Raise FailedPrecondition for an impossible change.
    """
    if not isinstance(created, ContainerRecord):
        raise NotFound("create container: it was removed externally meanwhile")
    info = rt.facts.info()
    adjustments = container_is_created(rt, created, sandbox=sandbox, rollback=rollback)
    changes = None
    if adjustments is not None:
        directories = info.cdi_spec_dirs or DIRECTORIES
        changes = changes_of(adjustments.adjust, env=adjustments.asked.env, cdi_directories=directories)
        _check_possible(changes, why_not=why_no_changes(info, runtime=runtime))
        _set_limits(rt, created, changes)
    order_container(
        info,
        created.id,
        runtime=runtime,
        pod=sandbox.config,
        pause=sandbox.id,
        mounts=mounts,
        config=None if changes is None else changes.config,
        process=None if changes is None else changes.process,
        restore=None if checkpoint is None else checkpoint.hand_over(rt, created.id),
    )
    if adjustments is None:
        return ()
    container_has_been_created(rt, rt.view.container(created.id), sandbox=sandbox)
    return tuple(adjustments.updates.by_container.values())


def _check_possible(changes: Changes, *, why_not: str) -> None:
    if changes.config and why_not:
        what = ", ".join(sorted(changes.config))
        raise FailedPrecondition(f"NRI plugins have set {what}: {why_not}")


def _set_limits(rt: Runtime, record: ContainerRecord, changes: Changes) -> None:
    if changes.limits.is_empty:
        return
    try:
        change_limits(rt, container_id=record.id, limits=changes.limits)
    except InvalidArgument as error:
        raise FailedPrecondition(f"NRI plugins have set an unsupported value: {error}") from error


def tell_stopped(rt: Runtime, record: ContainerRecord) -> None:
    """Notify plugins, once per run, that a container has ended. Failures are only logged."""
    updates: Sequence[nri.ContainerUpdate] = container_has_stopped(rt, record)
    try:
        update_others(rt, updates)
    except ShimError as error:
        log.warning("update by NRI plugin failed", error=error)
