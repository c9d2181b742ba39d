"""NRI events of pod sandboxes."""

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.base.rollback import Rollback
from shim.hooks.events import call_plugins, notify_plugins, shielded_turn
from shim.hooks.messages import pod_message
from shim.hooks.resources import of_cri
from shim.nri import plugin as events
from shim.runtime import Runtime
from shim.view.records import SandboxRecord, key_of


def pod_has_run(rt: Runtime, record: SandboxRecord, *, rollback: Rollback) -> None:
    """Send RunPodSandbox once the sandbox is complete, before clients see it.

    Raise FailedPrecondition if a plugin refuses the sandbox.
    """
    if not rt.nri.active:
        return
    rollback.undo("its record in NRI plugins", lambda: _undo(rt, record))
    with rt.nri.turn():
        rt.unseen.tell(key_of(record))
        call_plugins(rt, events.RUN_POD_SANDBOX, nri.RunPodSandboxRequest(pod=pod_message(rt, record)))


def _undo(rt: Runtime, record: SandboxRecord) -> None:
    pod_has_stopped(rt, record)
    pod_is_removed(rt, record)


def pod_has_stopped(rt: Runtime, record: SandboxRecord) -> None:
    """Send StopPodSandbox once the containers of the sandbox have ended."""
    if rt.nri.active:
        with shielded_turn(rt):
            notify_plugins(rt, events.STOP_POD_SANDBOX, nri.StopPodSandboxRequest(pod=pod_message(rt, record)))


def pod_is_removed(rt: Runtime, record: SandboxRecord) -> None:
    """Send RemovePodSandbox once, before the sandbox is removed."""
    if rt.nri.active:
        with shielded_turn(rt):
            if rt.nri.notified.note_removed(record.id):
                notify_plugins(rt, events.REMOVE_POD_SANDBOX, nri.RemovePodSandboxRequest(pod=pod_message(rt, record)))


def pod_is_updated(rt: Runtime, record: SandboxRecord, *, request: pb.UpdatePodSandboxResourcesRequest) -> None:
    """Send UpdatePodSandbox before the pod's resources change. Raise FailedPrecondition if a plugin refuses."""
    if rt.nri.active:
        message = nri.UpdatePodSandboxRequest(
            pod=pod_message(rt, record),
            overhead_linux_resources=of_cri(request.overhead),
            linux_resources=of_cri(request.resources),
        )
        with rt.nri.turn():
            call_plugins(rt, events.UPDATE_POD_SANDBOX, message)


def pod_has_been_updated(rt: Runtime, record: SandboxRecord) -> None:
    """Send PostUpdatePodSandbox."""
    if rt.nri.active:
        with shielded_turn(rt):
            notify_plugins(
                rt, events.POST_UPDATE_POD_SANDBOX, nri.PostUpdatePodSandboxRequest(pod=pod_message(rt, record))
            )
