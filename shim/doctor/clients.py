"""Whether clients find a server, and what to tell them."""

from collections.abc import Iterator
from pathlib import Path

from shim.cri.endpoint import ACTIVATION
from shim.cri.probe import version_at
from shim.doctor.findings import Finding
from shim.errors import FailedPrecondition, NotFound, ShimError, Unavailable, Unsupported

OTHER_RUNTIMES = (Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock"))
"""Sockets that kubeadm looks at beside ours. Docker brings containerd along, whose CRI it does not use."""


def check_clients(endpoint: str, *, others: tuple[Path, ...] = OTHER_RUNTIMES) -> Iterator[Finding]:
    """Whether the server answers, and the flags that bring clients to it."""
    if endpoint == ACTIVATION:
        yield Finding("ok", "server", "its socket is systemd's: systemctl status pydockershim.socket")
        return
    yield _server(endpoint)
    yield Finding("ok", "kubelet", f"--container-runtime-endpoint={endpoint}")
    if there := [str(path) for path in others if _is_there(path)]:
        text = f"--cri-socket {endpoint}, since it also finds {' and '.join(there)}"
        yield Finding("ok", "kubeadm", text)


def _server(endpoint: str) -> Finding:
    path = Path(endpoint.removeprefix("unix://"))
    try:
        version = version_at(path)
    except NotFound:
        return Finding("ok", "server", f"none runs at {endpoint}; start it with: pydockershim serve")
    except ShimError as error:
        return Finding("warn", "server", str(error), _advice(error))
    return Finding("ok", "server", f"{version.runtime_name} {version.runtime_version} answers at {endpoint}")


def _advice(error: ShimError) -> str:
    match error:
        case FailedPrecondition():
            return "run as root"
        case Unsupported():
            return "end what holds that socket, or choose another container_runtime_endpoint"
        case Unavailable():
            return "the server runs, but Docker does not answer it: see what is said of docker above"
        case _:
            return "look at what holds that socket: ss --listening --unix --processes"


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a directory of somebody else: to name our socket does no harm
        return True
