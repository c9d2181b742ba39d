"""What sandboxes and containers both need to know about the pod they belong to."""

import hashlib
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint import root as state
from shim.checkpoint.model import SandboxCheckpoint
from shim.cni.result import ResultError, pod_ips, result_from_json
from shim.domain import names
from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime
from shim.view.records import SandboxRecord

RESOLV_CONF = "/etc/resolv.conf"


def host_network(config: pb.PodSandboxConfig) -> bool:
    """Return whether a pod uses the network of the node."""
    return config.linux.security_context.namespace_options.network == pb.NODE


def is_ready(rt: Runtime, record: SandboxRecord) -> bool:
    """Return whether a sandbox is SANDBOX_READY: pause runs, and RunPodSandbox has completed.

    The checkpoint records the latter. A legacy (cri-dockerd) pod has none: its pause container alone decides.
    """
    if not record.state.running or record.legacy:
        return record.state.running
    checkpoint = rt.checkpoints.get(record.id)
    return checkpoint is not None and checkpoint.ready and not _is_restarted(record, checkpoint)


def _is_restarted(record: SandboxRecord, checkpoint: SandboxCheckpoint) -> bool:
    """Return whether pause was restarted externally: its new network namespace has no interface but `lo`."""
    known = checkpoint.pause_started_at and not record.state.from_list_only
    return bool(known) and record.state.started_at != checkpoint.pause_started_at


def ready_sandbox(rt: Runtime, *, sandbox_id: str) -> SandboxRecord:
    """Find the sandbox a container is to be made or started in.

    Raise NotFound, or FailedPrecondition when it is not ready.
    """
    record = rt.view.sandbox(sandbox_id)
    if not is_ready(rt, record):
        raise FailedPrecondition(f"pod sandbox {record.id} is not ready")
    return record


def addresses(checkpoint: SandboxCheckpoint | None) -> list[str]:
    """Return every address ADD gave to the pod, in the order of the plugin; empty before ADD and after DEL.

    Empty too where the result cannot be read. No ADD of ours leaves one, but the cache that other runtimes fill may,
    and the pod must have a status all the same.
    """
    network = checkpoint.network if checkpoint else None
    if network is None or network.result is None or network.released:
        return []
    try:
        return pod_ips(result_from_json(network.result), ifname=network.ifname)
    except ResultError:
        return []


def resolv_conf_path(rt: Runtime, *, metadata: pb.PodSandboxMetadata) -> Path:
    """Return the path of the pod's own resolv.conf on the host.

    Known before Docker has given an id, since the file must be there when the pause container is created; hashed,
    since a sandbox name may be longer than a file name can be.
    """
    digest = hashlib.sha256(names.sandbox_name(metadata).encode()).hexdigest()
    return resolv_conf_directory(rt) / digest[:32]


def resolv_conf_directory(rt: Runtime) -> Path:
    """Return the directory of all pods' resolv.conf files."""
    return rt.config.root_directory / state.RESOLV_CONF
