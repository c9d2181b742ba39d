"""The resolv.conf of a pod: a file of the server on the host, bind-mounted into each container of the pod.

Docker rewrites its own resolv.conf whenever a container starts. It does not rewrite the pod's file. So the kubelet's
settings survive restarts of the pause container and of Docker.
"""

from pathlib import Path

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import failing_as, read_regular
from shim.config.model import Config
from shim.hostfs.relabel import label_file
from shim.view.records import SandboxRecord

HOST_RESOLV_CONF = Path("/etc/resolv.conf")
RESOLV_CONF_LIMIT = 1 << 20
"""Maximum bytes of the host's file."""


def resolv_conf(dns: pb.DNSConfig | None, *, host: Path = HOST_RESOLV_CONF) -> bytes:
    """Return the content of the file: the DNS settings, or without any the host's resolv.conf, as the CRI requires.

    The result is bytes, because comments in the host's file may have any encoding. Raise ShimError if the host's file
    cannot be read.
    """
    lines = [] if dns is None else _lines(dns)
    if lines:
        return "".join(line + "\n" for line in lines).encode()
    with failing_as(f"read {host} for a pod without DNS settings"):
        try:
            return read_regular(host, most=RESOLV_CONF_LIMIT)
        except FileNotFoundError:
            return b""  # pods also run on a host without a resolver


def _lines(dns: pb.DNSConfig) -> list[str]:
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.append(f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return lines


def write_resolv_conf(path: Path, content: bytes) -> None:
    """Create the file, or rewrite it in place, because running containers have mounted its inode."""
    with failing_as(f"write {path}"):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _has(path, content):
            path.touch()  # recovery removes unused files that are older than this server
            return
        # Not atomic: a rename would leave the containers with the old file.
        path.write_bytes(content)
        path.chmod(0o644)


def _has(path: Path, content: bytes) -> bool:
    """Return whether the file has this content. It reads little, because a pod may have written any amount."""
    try:
        return read_regular(path, most=len(content)) == content
    except OSError:
        return False  # the following write reports the error


def ensure_pod_resolv_conf(settings: Config, config: pb.PodSandboxConfig) -> None:
    """Write the file of a pod unless it already has the right content. Raise ShimError."""
    wanted = resolv_conf(config.dns_config if config.HasField("dns_config") else None)
    write_resolv_conf(pod.resolv_conf_path(settings, metadata=config.metadata), wanted)


def label_pod_resolv_conf(settings: Config, record: SandboxRecord) -> None:
    """Label the file for a pod that SELinux confines, because Docker only labels its own files."""
    if record.mount_label:
        label_file(pod.resolv_conf_path(settings, metadata=record.config.metadata), label=record.mount_label)


def remove_resolv_conf(path: Path) -> None:
    """Remove the file if it exists."""
    with failing_as(f"remove {path}"):
        path.unlink(missing_ok=True)
