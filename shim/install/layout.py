"""The files of an installation: their paths and content."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import shim.oci_runtime
from shim import share
from shim.config.load import DEFAULT_FILE
from shim.config.model import Config
from shim.doctor.units import SERVICE

UNIT_DIRECTORY = Path("/etc/systemd/system")
PACKAGED_UNITS = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
"""Where packages put units."""
COMMAND_LINK = Path("/usr/local/bin/pydockershim")
CRI_DOCKERD_LINK = Path("/usr/bin/cri-dockerd")
ON_THE_PATH = (Path("/usr/local/sbin"), Path("/usr/local/bin"), Path("/usr/sbin"), Path("/usr/bin"))
"""Where login shells and systemd search for commands."""
CRICTL = Path("/etc/crictl.yaml")
DAEMON_JSON = Path("/etc/docker/daemon.json")
CNI_DIRECTORY = Path("/etc/cni/net.d")
OCI_RUNTIME = Path("/usr/libexec/pydockershim/oci-runtime")
"""The runtime that Docker's daemon.json names; packages contain it."""

_EXEC_START = re.compile(r"^(ExecStart=)\S+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """A file for a node."""

    path: Path
    content: bytes
    is_ours: bool
    """Whether to replace the file whatever its content. Other files are replaced only if an installation wrote them."""
    is_program: bool = False


def node_files(*, command: str, cni: str | None, aliases: bool, packaged: bool, docker: bool) -> Iterator[NodeFile]:
    """Yield all files of an installation; with a package's units, only the remaining files."""
    if not packaged:
        for name in share.UNITS:
            text = _EXEC_START.sub(rf"\g<1>{command}", share.unit(name))
            yield NodeFile(path=UNIT_DIRECTORY / name, content=text.encode(), is_ours=True)
        yield NodeFile(path=DEFAULT_FILE, content=share.configuration().encode(), is_ours=False)
        if docker:
            yield oci_runtime()
    if aliases:
        for name in share.AS_CRI_DOCKERD:
            yield NodeFile(path=UNIT_DIRECTORY / name, content=share.alias_unit(name).encode(), is_ours=True)
    yield NodeFile(path=CRICTL, content=_crictl().encode(), is_ours=False)
    if cni is not None:
        name = f"{cni}.conflist"
        yield NodeFile(path=CNI_DIRECTORY / name, content=share.example(cni).encode(), is_ours=False)


def oci_runtime() -> NodeFile:
    """Return the OCI runtime for this interpreter and this process's files."""
    program = Path(shim.oci_runtime.__file__).with_name("__main__.py")
    text = share.oci_runtime(python=sys.executable, program=str(program))
    return NodeFile(path=OCI_RUNTIME, content=text.encode(), is_ours=True, is_program=True)


def started_command(unit: str) -> str:
    """Return the program of a service unit; empty if it names none."""
    found = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    return found[1] if found else ""


def packaged_unit_paths() -> list[Path]:
    """Return the possible paths of a package's service unit."""
    return [directory / SERVICE for directory in PACKAGED_UNITS]


def _crictl() -> str:
    endpoint = Config().container_runtime_endpoint
    # crictl's default of 2 s is shorter than the time Status may take to report that Docker does not answer.
    settings = f"runtime-endpoint: {endpoint}\nimage-endpoint: {endpoint}\ntimeout: 10\n"
    return f"# Written by pydockershim install.\n{settings}"
