"""What NRI plugins are told of containers, and what they answer."""

from typing import TypeAlias

import structlog

from shim.api.nri import nri_pb2 as nri
from shim.base.rollback import Rollback
from shim.domain.errors import FailedPrecondition
from shim.hooks.events import note, noted, shielded_turn, tell
from shim.hooks.messages import container_message, pod_message
from shim.hooks.validate import validate
from shim.nri import plugin as events
from shim.nri.merge import Adjustments, Updates, merge_resources
from shim.nri.plugin import Occasion
from shim.runtime import Runtime
from shim.view.records import ContainerRecord, SandboxRecord, key_of

OtherUpdates: TypeAlias = tuple[nri.ContainerUpdate, ...]
"""Updates of other containers that plugins have asked for."""

log = structlog.get_logger(__name__)


def container_is_created(
    rt: Runtime, record: ContainerRecord, *, sandbox: SandboxRecord, rollback: Rollback
) -> Adjustments | None:
    """Tell of a container that Docker has made and clients do not see, and return what is to become of it.

    None without plugins and validator. Raise FailedPrecondition if one refuses it, or two do not agree.
    """
    if not rt.nri.active and not rt.config.nri_default_validator:
        return None
    inspect = rt.engine.inspect_container(record.id)
    rollback.undo("what NRI plugins know of it", lambda: container_is_removed(rt, record))
    with rt.nri.turn():
        rt.unseen.tell(key_of(record))
        request = nri.CreateContainerRequest(
            pod=pod_message(rt, sandbox),
            container=container_message(rt, record, sandbox=sandbox, inspect=inspect),
        )
        adjustments = Adjustments(request)
        for plugin, answer in rt.nri.tell(events.CREATE_CONTAINER, request):
            assert isinstance(answer, nri.CreateContainerResponse)  # noqa: S101 - for the type checker
            adjustments.add(answer, plugin=str(plugin))
        validate(rt, adjustments)
        return adjustments


def container_has_been_created(rt: Runtime, record: ContainerRecord, *, sandbox: SandboxRecord) -> None:
    """Tell that a container is there as it was adjusted."""
    _note(rt, events.POST_CREATE_CONTAINER, record, sandbox=sandbox)


def container_is_started(rt: Runtime, record: ContainerRecord) -> None:
    """Tell of a container that is about to start. Raise FailedPrecondition if a plugin refuses that."""
    if rt.nri.active:
        with rt.nri.turn():
            rt.nri.told.started(record.id)
            tell(rt, events.START_CONTAINER, _request(rt, events.START_CONTAINER, record))


def container_has_been_started(rt: Runtime, record: ContainerRecord) -> None:
    """Tell that a container has been started."""
    _note(rt, events.POST_START_CONTAINER, record)


def container_has_stopped(rt: Runtime, record: ContainerRecord) -> OtherUpdates:
    """Tell, once for each run, that a container has ended."""
    if not rt.nri.active:
        return ()
    updates = Updates()
    with shielded_turn(rt):
        if rt.nri.told.stopped(record.id):
            request = _request(rt, events.STOP_CONTAINER, record)
            for plugin, answer in noted(rt, events.STOP_CONTAINER, request):
                assert isinstance(answer, nri.StopContainerResponse)  # noqa: S101 - for the type checker
                try:
                    updates.add(answer.update, plugin=str(plugin))
                except FailedPrecondition as error:  # two plugins do not agree; the container has ended all the same
                    log.warning("update by NRI plugin failed", container=record.id, error=error)
    return tuple(updates.by_container.values())


def container_is_removed(rt: Runtime, record: ContainerRecord) -> None:
    """Tell, once, of a container that is about to be removed; before that that it has ended, where it has."""
    if rt.nri.active:
        container_has_stopped(rt, record)
        with shielded_turn(rt):
            if rt.nri.told.removed(record.id) and not rt.unseen.is_untold(record):
                note(rt, events.REMOVE_CONTAINER, _request(rt, events.REMOVE_CONTAINER, record))


def container_is_updated(
    rt: Runtime, record: ContainerRecord, resources: nri.LinuxResources
) -> tuple[nri.LinuxResources, OtherUpdates]:
    """Tell that the limits of a container are about to change; return what they are to be, and what else is to change.

    Raise FailedPrecondition if a plugin refuses it, or two do not agree.
    """
    if not rt.nri.active:
        return resources, ()
    with rt.nri.turn():
        sandbox = _sandbox(rt, record)
        request = nri.UpdateContainerRequest(
            pod=_pod(rt, record, sandbox),
            container=container_message(rt, record, sandbox=sandbox),
            linux_resources=resources,
        )
        updates = Updates()
        for plugin, answer in rt.nri.tell(events.UPDATE_CONTAINER, request):
            assert isinstance(answer, nri.UpdateContainerResponse)  # noqa: S101 - for the type checker
            updates.add(answer.update, plugin=str(plugin))
            for update in answer.update:
                if update.container_id == record.id:
                    merge_resources(request.linux_resources, update.linux.resources)
    others = tuple(update for update in updates.by_container.values() if update.container_id != record.id)
    return request.linux_resources, others


def container_has_been_updated(rt: Runtime, record: ContainerRecord) -> None:
    """Tell that they have changed."""
    _note(rt, events.POST_UPDATE_CONTAINER, record)


def _note(rt: Runtime, occasion: Occasion, record: ContainerRecord, *, sandbox: SandboxRecord | None = None) -> None:
    if rt.nri.wants(occasion):
        with shielded_turn(rt):
            note(rt, occasion, _request(rt, occasion, record, sandbox=sandbox))


def _request(
    rt: Runtime, occasion: Occasion, record: ContainerRecord, *, sandbox: SandboxRecord | None = None
) -> events.Request:
    """Return the request of an event of a container, which has pod and container and nothing else."""
    sandbox = sandbox or _sandbox(rt, record)
    known = rt.view.last_known(record.id)
    record = known if isinstance(known, ContainerRecord) else record
    kind = getattr(nri, f"{occasion.method}Request")
    request: events.Request = kind(
        pod=_pod(rt, record, sandbox), container=container_message(rt, record, sandbox=sandbox)
    )
    return request


def _sandbox(rt: Runtime, record: ContainerRecord) -> SandboxRecord | None:
    found = rt.view.last_known(record.sandbox_id)
    return found if isinstance(found, SandboxRecord) else None


def _pod(rt: Runtime, record: ContainerRecord, sandbox: SandboxRecord | None) -> nri.PodSandbox:
    return nri.PodSandbox(id=record.sandbox_id) if sandbox is None else pod_message(rt, sandbox)
