"""UpdateContainerResources."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import structlog

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.base.rollback import Rollback
from shim.cgroup.keys import bytes_from_limit
from shim.cgroup.places import Group
from shim.cgroup.writes import Write, check_writable, contents, restore, write_all
from shim.container.cgroup import check_unified_possible, ends, group_to_write, wanted_resources, writes_beyond_docker
from shim.container.change_lock import hold_for_change
from shim.domain.errors import FailedPrecondition, NotFound, ShimError
from shim.engine.interface import JsonObject
from shim.hooks.containers import OtherUpdates, container_has_been_updated, container_is_updated
from shim.hooks.resources import Wanted, check_changeable, of_cri, to_cri
from shim.runtime import Runtime
from shim.spec.resources import beyond_docker, check_kept, check_memory, former_fields, merge_resources, update_fields
from shim.view.records import ContainerRecord

FIELD = "linux"
_OF_PLUGINS = "linux.resources"
"""The field in the answer of an NRI plugin."""
MEMORY_FILE = "memory.max"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """The state before an update, as far as Docker does not store it."""

    kept: pb.LinuxContainerResources | None
    files: dict[str, bytes]
    """Content of the cgroup's files by path; empty if the container is not running."""
    cpuset_cpus: str = ""
    cpuset_mems: str = ""


def update_container_resources(rt: Runtime, *, container_id: str, linux: pb.LinuxContainerResources) -> None:
    """Change the limits of a created or running container, all or none; 0 or "" leaves a limit unchanged.

    A created container gets the new limits at its start. The OOM score is ignored, because Docker cannot change it;
    containerd does not change it either. Raise FailedPrecondition for an exited container, and for a memory limit below
    the usage.
    """
    with hold_for_change(rt, container_id) as known:
        record = _refresh_alive(rt, known.id)
        limits, others = _asked_of_plugins(rt, record, linux)
        updated = _change(rt, record, limits)
        container_has_been_updated(rt, updated)
    update_others(rt, others)


def change_limits(rt: Runtime, *, container_id: str, limits: Wanted) -> None:
    """Change the limits of a container for an NRI plugin, in the same way but without an event to plugins."""
    with hold_for_change(rt, container_id) as known:
        _change(rt, _refresh_alive(rt, known.id), limits)


def update_others(rt: Runtime, updates: Iterable[nri.ContainerUpdate]) -> None:
    """Apply the updates of other containers that plugins have requested in an answer.

    The caller must not hold a `limits` lock. Raise FailedPrecondition if a required update fails.
    """
    for update in updates:
        try:
            apply_update(rt, update)
        except ShimError as error:
            if not update.ignore_failure:
                raise FailedPrecondition(f"an NRI plugin asked for an update: {error}") from error
            log.info("update by NRI plugin failed, as it may", container=update.container_id, error=error)


def apply_update(rt: Runtime, update: nri.ContainerUpdate) -> None:
    """Apply an update that a plugin has requested."""
    resources = update.linux.resources
    check_changeable(resources, field=_OF_PLUGINS)
    limits = to_cri(resources, field=_OF_PLUGINS)
    if not limits.is_empty:
        change_limits(rt, container_id=update.container_id, limits=limits)


def _asked_of_plugins(
    rt: Runtime, record: ContainerRecord, linux: pb.LinuxContainerResources
) -> tuple[Wanted, OtherUpdates]:
    """Return the limits of an update as changed by plugins, and the updates of other containers that they request."""
    if not rt.nri.active:
        return Wanted(linux, {}), ()
    resources, others = container_is_updated(rt, record, of_cri(linux))
    check_changeable(resources, field=_OF_PLUGINS)
    return to_cri(resources, field=_OF_PLUGINS), others


def _change(rt: Runtime, record: ContainerRecord, limits: Wanted) -> ContainerRecord:
    """Change the limits of a live container and return its new record. The caller holds its `limits` lock."""
    # Strategy: check everything before the first write. Then update Docker's fields. Last, write the cgroup files for
    # limits without a field, because Docker or the runtime rewrites them. An error undoes all steps in reverse.
    linux = limits.linux
    check_unified_possible(linux, field=FIELD, version=rt.facts.info().cgroup_version)
    rt.limits.check(record.id)
    wanted = merge_resources(wanted_resources(rt, record), linux)
    check_memory(wanted, field=FIELD)
    group = group_to_write(rt, record, resources=wanted)
    writes = [] if group is None else writes_beyond_docker(wanted, group, field=FIELD)
    check_writable(writes)
    _check_usage(linux, group, record)
    body = {**update_fields(linux, wanted=wanted), **limits.docker}
    with Rollback(f"update of container {record.id}") as rollback:
        rollback.undo(
            "the update", partial(_put_back, rt, record, body=body, former=_former(rt, record, group, writes))
        )
        _apply(rt, record, wanted=wanted, body=body, writes=writes)
        updated = _refresh(rt, record.id)
        if body:
            check_kept(updated.host, linux, body=body, field=FIELD)
        rollback.commit()
    return updated


def _refresh_alive(rt: Runtime, container_id: str) -> ContainerRecord:
    """Inspect the container and return its record. Raise FailedPrecondition if it has exited or its exit is pending."""
    record = _refresh(rt, container_id)
    if record.state.phase not in {pb.CONTAINER_CREATED, pb.CONTAINER_RUNNING}:
        raise _has_ended(record)
    return record


def _has_ended(record: ContainerRecord) -> FailedPrecondition:
    return FailedPrecondition(f"container {record.id} has ended; its resources cannot be changed")


def _refresh(rt: Runtime, container_id: str) -> ContainerRecord:
    """Inspect the container and return its new record."""
    record = rt.view.refresh_container(container_id)
    if not isinstance(record, ContainerRecord):
        raise NotFound(f"no container has the id {container_id}")
    return record


def _check_usage(linux: pb.LinuxContainerResources, group: Group | None, record: ContainerRecord) -> None:
    """Refuse a limit below the working set. The kernel can only free unused page cache, and would kill processes."""
    limits = list(_memory_limits(linux))
    memory = group.memory() if group and limits else None
    for field, limit in limits:
        if memory is not None and memory.working_set > limit:
            raise FailedPrecondition(
                f"{FIELD}.{field} {limit} is less than the {memory.working_set} bytes container {record.id}"
                f" uses now ({memory.usage} with page cache)"
            )


def _memory_limits(linux: pb.LinuxContainerResources) -> Iterator[tuple[str, int]]:
    """Yield field and bytes of each memory limit in an update."""
    if linux.memory_limit_in_bytes > 0:
        yield "memory_limit_in_bytes", linux.memory_limit_in_bytes
    limit = bytes_from_limit(linux.unified.get(MEMORY_FILE, "max"))
    if limit is not None:
        yield f"unified[{MEMORY_FILE!r}]", limit


def _former(rt: Runtime, record: ContainerRecord, group: Group | None, writes: Sequence[Write]) -> Former:
    kept = rt.limits.get(record.id)
    if group is None:
        return Former(kept=kept, files={})
    cpus, mems = group.cpuset()
    files = contents([*group.limit_files(), *(write.path for write in writes)])
    return Former(kept=kept, files=files, cpuset_cpus=cpus, cpuset_mems=mems)


def _apply(
    rt: Runtime,
    record: ContainerRecord,
    *,
    wanted: pb.LinuxContainerResources,
    body: JsonObject,
    writes: Sequence[Write],
) -> None:
    beyond = beyond_docker(wanted)
    if beyond != beyond_docker(rt.limits.get(record.id) or record.config.linux.resources):
        rt.limits.keep_only({container.id for container in rt.view.containers()})
        rt.limits.put(record.id, beyond)
    if body:
        _update_in_docker(rt, record, body=body)
    # After Docker's update, which rewrites the same cgroup.
    if not write_all(writes):
        raise _has_ended(record)


def _update_in_docker(rt: Runtime, record: ContainerRecord, *, body: JsonObject) -> None:
    try:
        rt.engine.update_container(record.id, body=body)
    except ShimError as error:
        # For a container that ends meanwhile, Docker, containerd and runc report different errors.
        if type(error) is ShimError and record.state.pid and ends(record.state.pid):
            raise _has_ended(record) from error
        raise


def _put_back(rt: Runtime, record: ContainerRecord, *, body: JsonObject, former: Former) -> None:
    """Undo an update as far as possible: Docker's fields, then the cgroup files, then the stored limits."""
    with ExitStack() as undoing:
        undoing.callback(rt.view.refresh_container, record.id)
        undoing.callback(rt.limits.put, record.id, former.kept)
        undoing.callback(restore, former.files)
        undoing.callback(_undo_docker, rt, record, body=body, former=former)


def _undo_docker(rt: Runtime, record: ContainerRecord, *, body: JsonObject, former: Former) -> None:
    # Docker restores its fields after a refusal. If its answer was lost, they are unknown.
    if body and rt.engine.inspect_container(record.id).host_config != record.host:
        sets = {"cpuset_cpus": former.cpuset_cpus, "cpuset_mems": former.cpuset_mems}
        rt.engine.update_container(record.id, body=former_fields(record.host, body, **sets))
