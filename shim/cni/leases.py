"""Reservations of the IPAM plugin host-local: files `<dataDir>/<network>/<address>` with container id and interface."""

from pathlib import Path

from shim.base.atomic_files import read_regular
from shim.cni.plugin import JsonObject
from shim.domain.errors import ShimError, reason_of

DATA_DIR = Path("/var/lib/cni/networks")
"""The default of `dataDir`."""
FILE_LIMIT = 4096
"""Most bytes of a file."""
MAX_LEASES = 65_536
"""Most reservations of a network. With more, GC does not run: an incomplete list would release addresses in use."""


def leased(conflist: JsonObject) -> set[tuple[str, str]]:
    """Return container id and interface of each reservation in a network; none if it does not use host-local.

    Raise ShimError if there are more than MAX_LEASES, or if a reservation cannot be read.
    """
    found: set[tuple[str, str]] = set()
    for directory in _directories(conflist):
        try:
            paths = [path for path in directory.iterdir() if path.name[:1].isdigit() or ":" in path.name]
            if len(paths) > MAX_LEASES:
                raise ShimError(f"read {directory}: {len(paths)} reservations, at most {MAX_LEASES} are read")
            found |= {lease for path in paths if (lease := _lease(path))}
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ShimError(f"read the reservations in {directory}: {reason_of(error)}") from error
    return found


def _directories(conflist: JsonObject) -> set[Path]:
    ipams = [plugin.get("ipam") for plugin in conflist["plugins"]]
    local = [ipam for ipam in ipams if isinstance(ipam, dict) and ipam.get("type") == "host-local"]
    return {Path(str(ipam.get("dataDir") or DATA_DIR)) / conflist["name"] for ipam in local}


def _lease(path: Path) -> tuple[str, str] | None:
    try:
        lines = read_regular(path, most=FILE_LIMIT).decode(errors="replace").split("\n")
    except FileNotFoundError:  # released in the meantime
        return None
    # Old versions of the plugin name no interface.
    container_id, ifname = [line.strip(" \r") for line in (*lines, "")][:2]
    return (container_id, ifname or "eth0") if container_id else None
