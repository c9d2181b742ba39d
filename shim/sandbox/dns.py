"""The resolv.conf of a pod: one file on the host, ours, bind-mounted by every container of the pod.

Docker writes a resolv.conf of its own whenever a container starts; a file it does not own keeps what the kubelet asked
for over a restart of the pause container and of the daemon.
"""

from pathlib import Path

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import failing_as, read_regular
from shim.hostfs.relabel import label_file
from shim.runtime import Runtime
from shim.view.records import SandboxRecord

HOST_RESOLV_CONF = Path("/etc/resolv.conf")
RESOLV_CONF_LIMIT = 1 << 20
"""Bytes of the host's file."""


def resolv_conf(dns: pb.DNSConfig | None, *, host: Path = HOST_RESOLV_CONF) -> bytes:
    """Return the content of the file; without any DNS setting the host's own, as the CRI wants. Raise ShimError.

    Bytes, since a comment of the host's may be in any encoding.
    """
    lines = [] if dns is None else _lines(dns)
    if lines:
        return "".join(line + "\n" for line in lines).encode()
    with failing_as(f"read {host} for a pod without DNS settings"):
        try:
            return read_regular(host, most=RESOLV_CONF_LIMIT)
        except FileNotFoundError:
            return b""  # a host without a resolver is no reason to run no pods


def _lines(dns: pb.DNSConfig) -> list[str]:
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.append(f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return lines


def write_resolv_conf(path: Path, content: bytes) -> None:
    """Make or rewrite the file in place: running containers have mounted this very inode."""
    with failing_as(f"write {path}"):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _has(path, content):
            path.touch()  # by its time the recovery knows what no request of this server is about
            return
        # Not atomic on purpose: a rename would leave the containers with the old file.
        path.write_bytes(content)
        path.chmod(0o644)


def _has(path: Path, content: bytes) -> bool:
    """Return whether the file is as it should be. A pod may have written to it, as much as it likes."""
    try:
        return read_regular(path, most=len(content)) == content
    except OSError:
        return False  # what is wrong with it, the write says


def ensure_pod_resolv_conf(rt: Runtime, config: pb.PodSandboxConfig) -> None:
    """Write the file of a pod, unless it has the right content already. Raise ShimError where that fails."""
    wanted = resolv_conf(config.dns_config if config.HasField("dns_config") else None)
    write_resolv_conf(pod.resolv_conf_path(rt, metadata=config.metadata), wanted)


def label_pod_resolv_conf(rt: Runtime, record: SandboxRecord) -> None:
    """Label the file so that a pod that SELinux confines can read it: Docker labels only what it makes itself."""
    if record.mount_label:
        label_file(pod.resolv_conf_path(rt, metadata=record.config.metadata), label=record.mount_label)


def remove_resolv_conf(path: Path) -> None:
    """Remove the file; one that is gone is fine."""
    with failing_as(f"remove {path}"):
        path.unlink(missing_ok=True)
