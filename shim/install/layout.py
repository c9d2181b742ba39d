"""Where an installation puts what, and the content of it."""

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
"""Where a package puts its units."""
COMMAND_LINK = Path("/usr/local/bin/pydockershim")
CRI_DOCKERD_LINK = Path("/usr/bin/cri-dockerd")
ON_THE_PATH = (Path("/usr/local/sbin"), Path("/usr/local/bin"), Path("/usr/sbin"), Path("/usr/bin"))
"""What a login shell and systemd search for commands."""
CRICTL = Path("/etc/crictl.yaml")
DAEMON_JSON = Path("/etc/docker/daemon.json")
CNI_DIRECTORY = Path("/etc/cni/net.d")
OCI_RUNTIME = Path("/usr/libexec/pydockershim/oci-runtime")
"""The runtime that Docker's daemon.json names; a package brings it."""

_EXEC_START = re.compile(r"^(ExecStart=)\S+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """A file for a node."""

    path: Path
    content: bytes
    is_ours: bool
    """It is replaced whatever it holds; another one is left as it is where it holds what no installation wrote."""
    is_program: bool = False


def node_files(*, command: str, cni: str | None, aliases: bool, packaged: bool, docker: bool) -> Iterator[NodeFile]:
    """Yield all files of an installation; of one whose units are those of a package, the files beside them."""
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
    """Return the OCI runtime, for the interpreter and the files of this process."""
    program = Path(shim.oci_runtime.__file__).with_name("__main__.py")
    text = share.oci_runtime(python=sys.executable, program=str(program))
    return NodeFile(path=OCI_RUNTIME, content=text.encode(), is_ours=True, is_program=True)


def started_command(unit: str) -> str:
    """Return the program that a service unit runs; empty where it names none."""
    found = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    return found[1] if found else ""


def packaged_unit_paths() -> list[Path]:
    """Return where the service unit of a package may be."""
    return [directory / SERVICE for directory in PACKAGED_UNITS]


def _crictl() -> str:
    endpoint = Config().container_runtime_endpoint
    # crictl's own limit of 2 s is less than what Status may take to say that Docker does not answer.
    settings = f"runtime-endpoint: {endpoint}\nimage-endpoint: {endpoint}\ntimeout: 10\n"
    return f"# Written by pydockershim install.\n{settings}"
