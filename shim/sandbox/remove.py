"""RemovePodSandbox."""

from shim import pod
from shim.container.teardown import ensure_all_removed, ensure_removed
from shim.domain import names
from shim.hooks.containers import container_is_removed
from shim.hooks.pods import pod_is_removed
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.find import hold_sandbox, sandboxes
from shim.sandbox.legacy import remove_legacy_traces
from shim.sandbox.stop import stop_record
from shim.view.records import SandboxRecord


def remove_pod_sandbox(rt: Runtime, *, sandbox_id: str) -> None:
    """Remove a pod sandbox with all its containers, stopping it first if need be. An unknown id is fine."""
    with hold_sandbox(rt, sandbox_id) as record:
        if record is not None:
            remove_record(rt, record)


def remove_record(rt: Runtime, record: SandboxRecord) -> None:
    """Remove a sandbox; the caller holds the lock of its name.

    The checkpoint goes last: as long as anything is left, it is what a later try starts from.
    """
    stop_record(rt, record)
    containers = rt.view.containers_of(record.id)
    for container in containers:
        container_is_removed(rt, container)
    ensure_all_removed(rt, [container.id for container in containers])
    pod_is_removed(rt, record)
    ensure_removed(rt, record.id)
    if not record.legacy and not _has_twin(rt, record):
        dns.remove_resolv_conf(pod.resolv_conf_path(rt, metadata=record.config.metadata))
    if record.legacy:
        remove_legacy_traces(rt, record.id)
    rt.checkpoints.delete(record.id)
    rt.nri.notified.forget(record.id)


def _has_twin(rt: Runtime, record: SandboxRecord) -> bool:
    """Return whether there is another sandbox of the same attempt, and hence with the same resolv.conf.

    Docker may make a container long after we have given up waiting for it, and have asked again under another name.
    """
    name = names.sandbox_name(record.config.metadata)
    return any(other.id != record.id and names.sandbox_name(other.config.metadata) == name for other in sandboxes(rt))
