"""RemovePodSandbox."""

from shim import pod
from shim.container.teardown import ensure_all_removed, ensure_removed
from shim.domain import names
from shim.hooks.containers import container_is_removed
from shim.hooks.pods import pod_is_removed
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.cri_dockerd_files import remove_cri_dockerd_files
from shim.sandbox.find import hold_sandbox, sandboxes
from shim.sandbox.stop import stop_record
from shim.view.records import SandboxRecord


def remove_pod_sandbox(rt: Runtime, *, sandbox_id: str) -> None:
    """Stop and remove a pod sandbox with all its containers. Idempotent; an unknown id is ignored."""
    with hold_sandbox(rt, sandbox_id) as record:
        if record is not None:
            remove_record(rt, record)


def remove_record(rt: Runtime, record: SandboxRecord) -> None:
    """Remove a sandbox; the caller holds the lock of its name.

    The checkpoint is deleted last, because a retry after a failure needs it.
    """
    stop_record(rt, record)
    containers = rt.view.containers_of(record.id)
    for container in containers:
        container_is_removed(rt, container)
    ensure_all_removed(rt, [container.id for container in containers])
    pod_is_removed(rt, record)
    ensure_removed(rt, record.id)
    if not record.legacy and not _has_twin(rt, record):
        dns.remove_resolv_conf(pod.resolv_conf_path(rt.config, metadata=record.config.metadata))
    if record.legacy:
        remove_cri_dockerd_files(rt, record.id)
    rt.checkpoints.delete(record.id)
    rt.nri.notified.forget(record.id)


def _has_twin(rt: Runtime, record: SandboxRecord) -> bool:
    """Return whether another sandbox of the same attempt exists, which uses the same resolv.conf.

    Docker may create a container late, when the server has given up and created another container under a new name.
    """
    name = names.sandbox_name(record.config.metadata)
    return any(other.id != record.id and names.sandbox_name(other.config.metadata) == name for other in sandboxes(rt))
