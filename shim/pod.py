"""What sandboxes and containers both need to know about the pod they belong to."""

import hashlib
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint import root as state
from shim.checkpoint.model import SandboxCheckpoint
from shim.config.model import Config
from shim.domain import names
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.engine.interface import JsonObject
from shim.runtime import Runtime
from shim.view.records import SandboxRecord

RESOLV_CONF = "/etc/resolv.conf"


def host_network(config: pb.PodSandboxConfig) -> bool:
    """Whether a pod uses the network of the node."""
    return config.linux.security_context.namespace_options.network == pb.NODE


def is_ready(rt: Runtime, record: SandboxRecord) -> bool:
    """Whether a sandbox is SANDBOX_READY: pause runs, and RunPodSandbox has set up all there is to it.

    The checkpoint says the latter. A pod made by cri-dockerd has none here: its pause container alone decides.
    """
    if not record.life.running or record.foreign:
        return record.life.running
    checkpoint = rt.checkpoints.get(record.id)
    return checkpoint is not None and checkpoint.ready and not _restarted(record, checkpoint)


def _restarted(record: SandboxRecord, checkpoint: SandboxCheckpoint) -> bool:
    """Whether somebody has started pause again: its new network namespace has no interface but `lo`."""
    known = checkpoint.pause_started_at and not record.life.guessed
    return bool(known) and record.life.started_at != checkpoint.pause_started_at


def ready_sandbox(rt: Runtime, *, sandbox_id: str) -> SandboxRecord:
    """Find the sandbox a container is to be made or started in. NotFound, or FailedPrecondition when not ready."""
    record = rt.view.sandbox(sandbox_id)
    if not is_ready(rt, record):
        raise FailedPrecondition(f"pod sandbox {record.id} is not ready")
    return record


def resolv_conf_path(rt: Runtime, *, metadata: pb.PodSandboxMetadata) -> Path:
    """The pod's own resolv.conf on the host.

    Known before Docker has given an id, since the file must be there when the pause container is created; hashed,
    since a sandbox name may be longer than a file name can be.
    """
    digest = hashlib.sha256(names.sandbox_name(metadata).encode()).hexdigest()
    return resolv_conf_directory(rt) / digest[:32]


def resolv_conf_directory(rt: Runtime) -> Path:
    """Where each pod's own resolv.conf is."""
    return rt.config.root_directory / state.RESOLV_CONF


def docker_cgroup_parent(rt: Runtime, config: pb.PodSandboxConfig) -> str:
    """Docker's form of the kubelet's cgroup parent; with systemd a slice's own name, which implies its path."""
    path = config.linux.cgroup_parent
    return path.rstrip("/").rpartition("/")[2] if rt.facts.systemd_cgroups else path


def cgroupns_mode(rt: Runtime) -> str:
    """Give the CgroupnsMode of what is not privileged.

    On cgroup v1 it is the host's, as with the other runtimes. Said aloud, since a daemon may have another default
    (`default-cgroupns-mode`).
    """
    return "private" if rt.facts.info().cgroup_version == "2" else "host"


def docker_log(config: Config) -> JsonObject:
    """LogConfig of every container: files of bounded size from which the CRI log is copied.

    All of it is said, since Docker fills in what is not from its own configuration: compressed files would have to be
    unpacked to be copied, and in non-blocking mode Docker drops output.
    """
    options = {
        "max-size": config.docker_log_max_size,
        "max-file": str(config.docker_log_max_file),
        "compress": "false",
        "mode": "blocking",
    }
    return {"Type": config.docker_log_driver, "Config": options}


def docker_runtime(rt: Runtime, *, handler: str) -> str:
    """The OCI runtime of a runtime handler, empty for Docker's default. InvalidArgument names those known."""
    if handler in {"", "docker"}:
        return ""
    runtimes = rt.facts.runtimes(wanted=handler)
    if handler not in runtimes:
        raise InvalidArgument(
            f"runtime_handler: Docker has no runtime {handler!r}; it has {', '.join(sorted(runtimes))}"
        )
    return handler
