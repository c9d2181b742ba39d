"""Whether clients find a server, and what to tell them."""

from collections.abc import Iterator
from pathlib import Path

from shim.cri.endpoint import ACTIVATION
from shim.cri.probe import version_at
from shim.doctor.findings import Finding
from shim.errors import ShimError

OTHER_RUNTIMES = (Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock"))
"""Sockets that kubeadm looks at beside ours. Docker brings containerd along, whose CRI it does not use."""


def check_clients(endpoint: str, *, others: tuple[Path, ...] = OTHER_RUNTIMES) -> Iterator[Finding]:
    """Whether the server answers, and the flags that bring clients to it."""
    if endpoint == ACTIVATION:
        yield Finding("ok", "server", "its socket is systemd's: systemctl status pydockershim.socket")
        return
    yield _server(endpoint)
    yield Finding("ok", "kubelet", f"--container-runtime-endpoint={endpoint}")
    if there := [str(path) for path in others if path.exists()]:
        text = f"--cri-socket {endpoint}, since it also finds {' and '.join(there)}"
        yield Finding("ok", "kubeadm", text)


def _server(endpoint: str) -> Finding:
    path = Path(endpoint.removeprefix("unix://"))
    if not path.exists():
        return Finding("ok", "server", f"none runs at {endpoint}; start it with: pydockershim serve")
    try:
        version = version_at(path)
    except ShimError as error:
        advice = "end what holds that socket, or choose another container_runtime_endpoint"
        return Finding("warn", "server", str(error), advice)
    return Finding("ok", "server", f"{version.runtime_name} {version.runtime_version} answers at {endpoint}")
