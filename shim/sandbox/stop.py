"""StopPodSandbox."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from shim.api.v1 import api_pb2 as pb
from shim.base.gather import gather
from shim.container.plugins import tell_stopped
from shim.container.teardown import ensure_all_killed
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
    """Kill what runs in a pod and release its network. Idempotent; an unknown id is fine.

    The kubelet has given the containers their grace periods before. A CNI DEL that fails is the error of the call,
    and is tried again by the next.
    """
    with hold_sandbox(rt, sandbox_id) as record:
        if record is not None:
            stop_record(rt, record)


def stop_record(rt: Runtime, record: SandboxRecord) -> None:
    """Stop a sandbox; the caller holds the lock of its name."""
    # Strategy: close the sandbox for new containers, end those there are, then release its addresses. The last two
    # run side by side where the pinned namespace keeps DEL independent of pause, else one after the other.
    checkpoint = checkpoint_of(rt, record)
    was_ready = record.state.running if checkpoint is None else checkpoint.ready
    if checkpoint is not None:
        # From here on no container is started in it, also after a crash: it may be half stopped then.
        checkpoint = replace(checkpoint, ready=False)
        rt.checkpoints.note(checkpoint)
    # Created ones too: Docker may be starting one, for a client that has given up waiting.
    alive = [c for c in rt.view.containers_of(record.id) if c.state.phase != pb.CONTAINER_EXITED]
    # Their network goes only when they have ended: an address must not be given away while it is in use.
    ensure_all_killed(rt, [c.id for c in alive])
    if was_ready:
        for container in alive:
            tell_stopped(rt, container)
        pod_has_stopped(rt, record)
    unstarted = [c.id for c in alive if c.state.phase == pb.CONTAINER_CREATED]
    if checkpoint is None:
        _stop_pause(rt, record, unstarted=unstarted)
        if not record.legacy:
            unpin(network.netns_path(rt, record.id))  # all that can be left of an unknown network
        return
    if record.legacy and record.state.running:
        # Docker may not know yet that pause has ended, and its pid may have been reused: DEL must not run in the
        # namespace of another process.
        with suppress(ProcessEnded):
            network.pin_netns(checkpoint, pid=record.state.pid, confirmed=partial(is_process_of, record))
    if unstarted:
        _stop_pause(rt, record, unstarted=unstarted)
        network.release(rt, checkpoint)
    else:
        # The namespace is pinned, so DEL need not wait for the end of pause, nor pause for DEL.
        both: list[Callable[[], object]] = [partial(network.release, rt, checkpoint), partial(_stop_pause, rt, record)]
        gather(both)
    network.unpin_netns(checkpoint)


def _stop_pause(rt: Runtime, record: SandboxRecord, *, unstarted: Sequence[str] = ()) -> None:
    if record.state.phase != pb.CONTAINER_EXITED:  # a created one, too: Docker may be starting it
        kill_pause(rt, record.id)
    # Docker may have done a delayed start in the meantime that an earlier server has asked for. Without pause it does
    # none.
    ensure_all_killed(rt, unstarted)
