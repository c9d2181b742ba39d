"""Facts about runc: the names of its runtimes and its containerd-shim. Pure."""

from shim.engine.answers import EngineInfo, HostSettings, NetworkSettings

SHIM_GROUP = "io.containerd.runc.v2.group"
"""The annotation for a shared containerd-shim: all containers with the same value share it, under runc."""

ORDERED_RUNTIME = "pydockershim"
"""Docker's name for the OCI runtime of this server (`shim.oci_runtime`), which executes runc."""
ORDERS_OPTION = "--orders"
"""The first argument of the OCI runtime, before the directory of orders."""

_RUNC = frozenset({"runc", "io.containerd.runc.v2", ORDERED_RUNTIME})
"""Docker's names of runtimes that use the containerd-shim for runc. An administrator's runtimes may use another."""


def has_runc_shim(info: EngineInfo, runtime: str) -> bool:
    """Return whether a runtime, empty for Docker's default, certainly uses the containerd-shim for runc."""
    return (runtime or info.default_runtime) in _RUNC


def shim_group(host: HostSettings) -> str:
    """Return the group of containers that share a containerd-shim; empty if the container does not share one."""
    return (host.annotations or {}).get(SHIM_GROUP, "")


def exec_root(network: NetworkSettings | None) -> str:
    """Return Docker's exec root, from the path of a running container's network namespace; empty if unknown."""
    root, found, _ = (network.sandbox_key if network else "").rpartition("/netns/")
    return root if found else ""
