"""What NRI plugins are told of pod sandboxes."""

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.base.rollback import Rollback
from shim.hooks.events import note, shielded_turn, tell
from shim.hooks.messages import pod_message
from shim.hooks.resources import of_cri
from shim.nri import plugin as events
from shim.runtime import Runtime
from shim.view.records import SandboxRecord, key_of


def pod_has_run(rt: Runtime, record: SandboxRecord, *, rollback: Rollback) -> None:
    """Tell of a pod sandbox that is complete, before clients see it. Raise FailedPrecondition if a plugin refuses."""
    if not rt.nri.active:
        return
    rollback.undo("what NRI plugins know of it", lambda: _undo(rt, record))
    with rt.nri.turn():
        rt.unseen.tell(key_of(record))
        tell(rt, events.RUN_POD_SANDBOX, nri.RunPodSandboxRequest(pod=pod_message(rt, record)))


def _undo(rt: Runtime, record: SandboxRecord) -> None:
    pod_has_stopped(rt, record)
    pod_is_removed(rt, record)


def pod_has_stopped(rt: Runtime, record: SandboxRecord) -> None:
    """Tell of a pod sandbox whose containers have ended."""
    if rt.nri.active:
        with shielded_turn(rt):
            note(rt, events.STOP_POD_SANDBOX, nri.StopPodSandboxRequest(pod=pod_message(rt, record)))


def pod_is_removed(rt: Runtime, record: SandboxRecord) -> None:
    """Tell, once, of a pod sandbox that is about to be removed."""
    if rt.nri.active:
        with shielded_turn(rt):
            if rt.nri.told.removed(record.id):
                note(rt, events.REMOVE_POD_SANDBOX, nri.RemovePodSandboxRequest(pod=pod_message(rt, record)))


def pod_is_updated(rt: Runtime, record: SandboxRecord, *, request: pb.UpdatePodSandboxResourcesRequest) -> None:
    """Tell that the resources of a pod are about to change. Raise FailedPrecondition if a plugin refuses that."""
    if rt.nri.active:
        message = nri.UpdatePodSandboxRequest(
            pod=pod_message(rt, record),
            overhead_linux_resources=of_cri(request.overhead),
            linux_resources=of_cri(request.resources),
        )
        with rt.nri.turn():
            tell(rt, events.UPDATE_POD_SANDBOX, message)


def pod_has_been_updated(rt: Runtime, record: SandboxRecord) -> None:
    """Tell that they have changed."""
    if rt.nri.active:
        with shielded_turn(rt):
            note(rt, events.POST_UPDATE_POD_SANDBOX, nri.PostUpdatePodSandboxRequest(pod=pod_message(rt, record)))
