"""StopPodSandbox."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from shim.api.v1 import api_pb2 as pb
from shim.base.gather import gather
from shim.container.plugins import tell_stopped
from shim.container.teardown import ensure_all_killed, forbid_restarts
from shim.hooks.pods import pod_has_stopped
from shim.netns.pin import ProcessEnded, unpin
from shim.runtime import Runtime
from shim.sandbox import network
from shim.sandbox.find import hold_sandbox
from shim.sandbox.pause_exit import kill_pause
from shim.sandbox.rebuild import checkpoint_of
from shim.view.processes import is_process_of
from shim.view.records import SandboxRecord


def stop_pod_sandbox(rt: Runtime, *, sandbox_id: str) -> None:
    """Kill all containers of a pod and release its network. Idempotent; an unknown id is ignored.

    The kubelet has already stopped the containers with their grace periods. Raise the error of a failed CNI DEL; the
    next call repeats it.
    """
    with hold_sandbox(rt, sandbox_id) as record:
        if record is not None:
            stop_record(rt, record)


def stop_record(rt: Runtime, record: SandboxRecord) -> None:
    """Stop a sandbox; the caller holds the lock of its name."""
    # Strategy: close the sandbox for new containers, kill its containers, then kill pause and release its addresses.
    # The last two steps run in parallel if the namespace is pinned, which makes DEL independent of pause.
    checkpoint = checkpoint_of(rt, record)
    was_ready = record.state.running if checkpoint is None else checkpoint.ready
    if checkpoint is not None:
        # From here on no container starts in the sandbox, even after a crash of the server.
        checkpoint = replace(checkpoint, ready=False)
        rt.checkpoints.note(checkpoint)
    # Include created containers, because Docker may be starting one for a client that has given up.
    alive = [c for c in rt.view.containers_of(record.id) if c.state.phase != pb.CONTAINER_EXITED]
    # Release the network only afterwards, because an address must not be reassigned while it is in use.
    ensure_all_killed(rt, [c.id for c in alive])
    if was_ready:
        for container in alive:
            tell_stopped(rt, container)
        pod_has_stopped(rt, record)
    unstarted = [c.id for c in alive if c.state.phase == pb.CONTAINER_CREATED]
    if checkpoint is None:
        _stop_pause(rt, record, unstarted=unstarted)
        if not record.legacy:
            unpin(network.netns_path(rt.config, record.id))  # nothing else is known about its network
        return
    if record.legacy and record.state.running:
        # Docker may not know yet that pause has ended, and the pid may have been reused. DEL must not run in the
        # namespace of another process.
        with suppress(ProcessEnded):
            network.pin_netns(checkpoint, pid=record.state.pid, confirmed=partial(is_process_of, record))
    if unstarted:
        _stop_pause(rt, record, unstarted=unstarted)
        network.release(rt, checkpoint)
    else:
        # The namespace is pinned, so DEL and the end of pause are independent.
        both: list[Callable[[], object]] = [partial(network.release, rt, checkpoint), partial(_stop_pause, rt, record)]
        gather(both)
    network.unpin_netns(checkpoint)


def _stop_pause(rt: Runtime, record: SandboxRecord, *, unstarted: Sequence[str] = ()) -> None:
    if record.state.phase != pb.CONTAINER_EXITED:  # Docker may be starting a created container
        kill_pause(rt, record.id)
    else:
        forbid_restarts(rt, record.id)
    # Meanwhile Docker may have started a container for an earlier server. Without pause it starts no further container.
    ensure_all_killed(rt, unstarted)
