"""RemovePodSandbox."""

from shim import pod
from shim.container.removal import ensure_all_removed, ensure_removed
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.find import held_sandbox
from shim.sandbox.stop import stop_record
from shim.view.records import SandboxRecord


def remove_pod_sandbox(rt: Runtime, *, sandbox_id: str) -> None:
    """Remove a pod sandbox with all its containers, stopping it first if need be. An unknown id is fine."""
    with held_sandbox(rt, sandbox_id) as record:
        if record is not None:
            remove_record(rt, record)


def remove_record(rt: Runtime, record: SandboxRecord) -> None:
    """Remove a sandbox; the caller holds the lock of its name.

    The checkpoint goes last: as long as anything is left, it is what a later try starts from.
    """
    stop_record(rt, record)
    ensure_all_removed(rt, [container.id for container in rt.view.containers_of(record.id)])
    ensure_removed(rt, record.id)
    if not record.foreign:
        dns.remove_resolv_conf(pod.resolv_conf_path(rt, metadata=record.config.metadata))
    rt.checkpoints.delete(record.id)
