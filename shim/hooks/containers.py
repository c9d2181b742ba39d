"""NRI events of containers."""

from typing import TypeAlias

import structlog

from shim.api.nri import nri_pb2 as nri
from shim.base.rollback import Rollback
from shim.domain.errors import FailedPrecondition
from shim.hooks.events import call_plugins, notify_each_plugin, notify_plugins, shielded_turn
from shim.hooks.messages import container_message, pod_message
from shim.hooks.validate import validate
from shim.nri import plugin as events
from shim.nri.merge import Adjustments, Updates, merge_resources
from shim.nri.plugin import Event
from shim.runtime import Runtime
from shim.view.records import ContainerRecord, SandboxRecord, key_of

OtherUpdates: TypeAlias = tuple[nri.ContainerUpdate, ...]
"""Updates of other containers that plugins ask for in an answer."""

log = structlog.get_logger(__name__)


def container_is_created(
    rt: Runtime, record: ContainerRecord, *, sandbox: SandboxRecord, rollback: Rollback
) -> Adjustments | None:
    """Send CreateContainer for a container that Docker has created and clients cannot see; return the merged answers.

    Return None if there is neither a plugin nor the built-in validator. Raise FailedPrecondition if a plugin refuses
    the container, or if two plugins set the same field.
    """
    if not rt.nri.active and not rt.config.nri_default_validator:
        return None
    inspect = rt.engine.inspect_container(record.id)
    rollback.undo("its record in NRI plugins", lambda: container_is_removed(rt, record))
    with rt.nri.turn():
        rt.unseen.tell(key_of(record))
        request = nri.CreateContainerRequest(
            pod=pod_message(rt, sandbox),
            container=container_message(rt, record, sandbox=sandbox, inspect=inspect),
        )
        adjustments = Adjustments(request)
        for plugin, answer in rt.nri.call(events.CREATE_CONTAINER, request):
            assert isinstance(answer, nri.CreateContainerResponse)  # noqa: S101 - for the type checker
            adjustments.add(answer, plugin=str(plugin))
        validate(rt, adjustments)
        return adjustments


def container_has_been_created(rt: Runtime, record: ContainerRecord, *, sandbox: SandboxRecord) -> None:
    """Send PostCreateContainer for a container with all adjustments applied."""
    _notify(rt, events.POST_CREATE_CONTAINER, record, sandbox=sandbox)


def container_is_started(rt: Runtime, record: ContainerRecord) -> None:
    """Send StartContainer before a container starts. Raise FailedPrecondition if a plugin refuses the start."""
    if rt.nri.active:
        with rt.nri.turn():
            rt.nri.notified.note_started(record.id)
            call_plugins(rt, events.START_CONTAINER, _request(rt, events.START_CONTAINER, record))


def container_has_been_started(rt: Runtime, record: ContainerRecord) -> None:
    """Send PostStartContainer."""
    _notify(rt, events.POST_START_CONTAINER, record)


def container_has_stopped(rt: Runtime, record: ContainerRecord) -> OtherUpdates:
    """Send StopContainer after a container has ended, once for each run; return the updates that plugins ask for."""
    if not rt.nri.active:
        return ()
    updates = Updates()
    with shielded_turn(rt):
        if rt.nri.notified.note_stopped(record.id):
            request = _request(rt, events.STOP_CONTAINER, record)
            for plugin, answer in notify_each_plugin(rt, events.STOP_CONTAINER, request):
                assert isinstance(answer, nri.StopContainerResponse)  # noqa: S101 - for the type checker
                try:
                    updates.add(answer.update, plugin=str(plugin))
                except FailedPrecondition as error:  # two plugins disagree, which does not change the container's end
                    log.warning("update by NRI plugin failed", container=record.id, error=error)
    return tuple(updates.by_container.values())


def container_is_removed(rt: Runtime, record: ContainerRecord) -> None:
    """Send RemoveContainer once, before a container is removed; first StopContainer, if that is still due."""
    if rt.nri.active:
        container_has_stopped(rt, record)
        with shielded_turn(rt):
            if rt.nri.notified.note_removed(record.id) and not rt.unseen.is_untold(record):
                notify_plugins(rt, events.REMOVE_CONTAINER, _request(rt, events.REMOVE_CONTAINER, record))


def container_is_updated(
    rt: Runtime, record: ContainerRecord, resources: nri.LinuxResources
) -> tuple[nri.LinuxResources, OtherUpdates]:
    """Send UpdateContainer before limits change; return the limits to set, and the updates of other containers.

    Raise FailedPrecondition if a plugin refuses the update, or if two plugins set the same field.
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
        for plugin, answer in rt.nri.call(events.UPDATE_CONTAINER, request):
            assert isinstance(answer, nri.UpdateContainerResponse)  # noqa: S101 - for the type checker
            updates.add(answer.update, plugin=str(plugin))
            for update in answer.update:
                if update.container_id == record.id:
                    merge_resources(request.linux_resources, update.linux.resources)
    others = tuple(update for update in updates.by_container.values() if update.container_id != record.id)
    return request.linux_resources, others


def container_has_been_updated(rt: Runtime, record: ContainerRecord) -> None:
    """Send PostUpdateContainer."""
    _notify(rt, events.POST_UPDATE_CONTAINER, record)


def _notify(rt: Runtime, event: Event, record: ContainerRecord, *, sandbox: SandboxRecord | None = None) -> None:
    if rt.nri.wants(event):
        with shielded_turn(rt):
            notify_plugins(rt, event, _request(rt, event, record, sandbox=sandbox))


def _request(
    rt: Runtime, event: Event, record: ContainerRecord, *, sandbox: SandboxRecord | None = None
) -> events.Request:
    """Return the request of an event that has only a pod and a container."""
    sandbox = sandbox or _sandbox(rt, record)
    known = rt.view.last_known(record.id)
    record = known if isinstance(known, ContainerRecord) else record
    kind = getattr(nri, f"{event.method}Request")
    request: events.Request = kind(
        pod=_pod(rt, record, sandbox), container=container_message(rt, record, sandbox=sandbox)
    )
    return request


def _sandbox(rt: Runtime, record: ContainerRecord) -> SandboxRecord | None:
    found = rt.view.last_known(record.sandbox_id)
    return found if isinstance(found, SandboxRecord) else None


def _pod(rt: Runtime, record: ContainerRecord, sandbox: SandboxRecord | None) -> nri.PodSandbox:
    return nri.PodSandbox(id=record.sandbox_id) if sandbox is None else pod_message(rt, sandbox)
