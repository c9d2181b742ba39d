"""What is known of runc: its containerd-shim, and the error texts for a container it cannot start. Pure."""

from shim.engine.answers import EngineInfo, HostSettings, NetworkSettings

SHIM_GROUP = "io.containerd.runc.v2.group"
"""The annotation by which containerd's shim for runc serves several containers: all of one value."""

ORDERED_RUNTIME = "pydockershim"
"""Docker's name for the OCI runtime of this server (`shim.oci_runtime`), which executes runc."""
ORDERS_OPTION = "--orders"
"""Its first argument, before the directory of orders."""

_RUNC = frozenset({"runc", "io.containerd.runc.v2", ORDERED_RUNTIME})
"""Docker's names for runc under that shim. Runtimes that an administrator has added may have it or another one."""

_LAYERS = (
    "failed to create task for container: ",
    "failed to create shim task: ",
    "failed to create shim: ",
    "failed to start shim: ",
    "OCI runtime create failed: ",
    "OCI runtime start failed: ",
    "runc create failed: ",
    "runc start failed: ",
    "unable to start container process: ",
    "error during container init: ",
)
"""Prefixes added on the way from runc over containerd to Docker, in Engine 20.10 to 28."""

_NO_CODE = ": unknown"
"""The gRPC code of containerd's answer, which old Engines put behind the text, before any advice of Docker."""


def has_runc_shim(info: EngineInfo, runtime: str) -> bool:
    """Return whether containers of a runtime, empty for Docker's default, surely have containerd's shim for runc."""
    return (runtime or info.default_runtime) in _RUNC


def shim_group(host: HostSettings) -> str:
    """Return the group whose shim a container has, empty for one with a shim of its own."""
    return (host.annotations or {}).get(SHIM_GROUP, "")


def exec_root(network: NetworkSettings | None) -> str:
    """Return Docker's directory for what runs, as a running container shows it by its network namespace; else empty."""
    root, found, _ = (network.sandbox_key if network else "").rpartition("/netns/")
    return root if found else ""


def plain_start_error(text: str) -> str:
    """Strip the prefixes: the cause remains, such as `exec: "x": executable file not found in $PATH`."""
    cause = text.strip()
    while layer := next((layer for layer in _LAYERS if cause.startswith(layer)), ""):
        cause = cause.removeprefix(layer)
    if cause == text.strip():
        return text
    cause = cause.removesuffix(_NO_CODE).replace(f"{_NO_CODE}: Are you trying to", ": Are you trying to")
    return cause or text
