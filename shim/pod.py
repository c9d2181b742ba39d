"""Facts about a pod that sandbox and container verbs share: readiness, addresses, network mode, resolv.conf."""

import hashlib
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint import root as state
from shim.checkpoint.model import SandboxCheckpoint
from shim.checkpoint.store import CheckpointStore
from shim.cni.result import ResultError, pod_ips, result_from_json
from shim.config.model import Config
from shim.domain import names
from shim.domain.errors import FailedPrecondition, NotFound
from shim.runtime import Runtime
from shim.view.records import SandboxRecord

RESOLV_CONF = "/etc/resolv.conf"


def host_network(config: pb.PodSandboxConfig) -> bool:
    """Return whether a pod uses the network of the node."""
    return config.linux.security_context.namespace_options.network == pb.NODE


def is_ready(checkpoints: CheckpointStore, record: SandboxRecord) -> bool:
    """Return whether a sandbox is SANDBOX_READY: pause runs, and the checkpoint records a completed RunPodSandbox.

    A cri-dockerd pod has no checkpoint: it is ready if pause runs.
    """
    if not record.state.running or record.legacy:
        return record.state.running
    checkpoint = checkpoints.get(record.id)
    return checkpoint is not None and checkpoint.ready and not _is_restarted(record, checkpoint)


def _is_restarted(record: SandboxRecord, checkpoint: SandboxCheckpoint) -> bool:
    """Return whether pause was restarted externally, into a new network namespace with only `lo`."""
    known = checkpoint.pause_started_at and not record.state.from_list_only
    return bool(known) and record.state.started_at != checkpoint.pause_started_at


def ready_sandbox(rt: Runtime, *, sandbox_id: str) -> SandboxRecord:
    """Return the ready sandbox of an id or unique prefix. Raise NotFound, or FailedPrecondition if it is not ready."""
    record = rt.view.sandbox(sandbox_id)
    if not is_ready(rt.checkpoints, record):
        raise FailedPrecondition(f"pod sandbox {record.id} is not ready")
    return record


def exec_root_of(rt: Runtime, sandbox_id: str) -> str:
    """Return Docker's exec root, as of a pod's pause container; empty if that does not run."""
    try:
        return rt.view.sandbox(sandbox_id).exec_root
    except NotFound:  # removed by hand
        return ""


def addresses(checkpoint: SandboxCheckpoint | None) -> list[str]:
    """Return the addresses that ADD gave to the pod, in the plugin's order; [] before ADD and after DEL.

    Also [] for an unreadable result: it can come from the CNI cache of another runtime, and the pod still needs a
    status.
    """
    network = checkpoint.network if checkpoint else None
    if network is None or network.result is None or network.released:
        return []
    try:
        return pod_ips(result_from_json(network.result), ifname=network.ifname)
    except ResultError:
        return []


def resolv_conf_path(settings: Config, *, metadata: pb.PodSandboxMetadata) -> Path:
    """Return the path of the pod's resolv.conf on the host.

    Derived from the name, since the file must exist before Docker creates the pause container and assigns its id.
    Hashed, since a sandbox name may be too long for a file name.
    """
    digest = hashlib.sha256(names.sandbox_name(metadata).encode()).hexdigest()
    return resolv_conf_directory(settings) / digest[:32]


def resolv_conf_directory(settings: Config) -> Path:
    """Return the directory of all pods' resolv.conf files."""
    return settings.root_directory / state.RESOLV_CONF
