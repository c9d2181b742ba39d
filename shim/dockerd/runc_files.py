"""Reads the state file of runc and the bundle of containerd for a running container, and finds its containerd-shim.

All files belong to root. Docker's API does not report their content.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from shim.base.atomic_files import read_regular
from shim.base.proc import value_of
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.dockerd.starting_tasks import STATE_LIMIT, state_file

STATUS_BYTES = 1 << 16
"""Maximum bytes read from a file of /proc."""

_RUNC = "runc"
_EXECUTE_RUNC = frozenset({"oci-runtime", ORDERED_RUNTIME})
"""File names, without suffix, of the server's OCI runtime and of the script that Docker creates for its arguments."""


class Unfit(Exception):
    """The files lack the required data, or another runtime created the container. `reason` is a label for a metric."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class StateConfig(msgspec.Struct):
    """The relevant part of the configuration in runc's state."""

    labels: list[str] | None = None


class State(msgspec.Struct):
    """The relevant part of runc's `state.json`."""

    init_process_pid: int
    init_process_start: int
    """Start time of the process, in clock ticks since boot."""
    cgroup_paths: dict[str, str]
    """Directories by controller; for cgroup v2 the key is empty."""
    config: StateConfig


def read_state(container_id: str, *, exec_root: Path, pid: int) -> State:
    """Return runc's state of a container whose first process is `pid`.

    Raise Unfit if the state names another process, or if `exec_root` or `pid` is unknown (empty, 0); also OSError and
    msgspec.MsgspecError.
    """
    if not exec_root.is_absolute() or not pid:
        raise Unfit("state", "the directory of runc's state is unknown")
    state = msgspec.json.decode(read_file(state_file(exec_root, container_id)), type=State)
    if state.init_process_pid != pid or began(pid) != state.init_process_start:
        raise Unfit("state", f"runc has process {state.init_process_pid}, Docker {pid}")
    return state


def bundle_of(state: State) -> Path:
    """Return containerd's directory of a container, which holds its `config.json`. Raise Unfit."""
    for label in state.config.labels or ():
        name, _, value = label.partition("=")
        if name == "bundle":
            return Path(value)
    raise Unfit("state", "runc does not name the bundle")


def runc_of(bundle: Path, *, shim: int) -> Path:
    """Return the path of the runc that created the container, directly or from the server's OCI runtime.

    `shim` is the pid of the containerd-shim. Raise Unfit for another runtime, or OSError.
    """
    named = Path((read_file(bundle / "runtime") or b"runc").decode().strip())
    if named.name == _RUNC and named.is_absolute():
        return named
    if named.name != _RUNC and named.name.partition(".")[0] not in _EXECUTE_RUNC:
        raise Unfit("runtime", f"its OCI runtime is {named}")
    environment = dict(each.partition(b"=")[::2] for each in read_file(Path(f"/proc/{shim}/environ")).split(b"\0"))
    found = shutil.which(_RUNC, path=os.fsdecode(environment.get(b"PATH", b"")))
    if found is None:
        raise Unfit("runtime", "runc is not in the PATH of the containerd-shim")
    return Path(found)


def shim_of(pid: int) -> int:
    """Return the pid of the containerd-shim, the parent of a container's first process. Raise Unfit or OSError."""
    parent = int(value_of(status(pid), b"PPid"))
    with Path(f"/proc/{parent}/comm").open("rb") as file:
        if not file.read().startswith(b"containerd-shim"):
            raise Unfit("shim", f"the parent {parent} of the first process is not a containerd-shim")
    return parent


def is_frozen(cgroup_paths: Mapping[str, str]) -> bool:
    """Return whether a container's control group is frozen."""
    unified, freezer = cgroup_paths.get(""), cgroup_paths.get("freezer")
    if freezer is not None:
        return word(Path(freezer, "freezer.state")) != b"THAWED"
    return unified is not None and word(Path(unified, "cgroup.freeze")) == b"1"


def began(pid: int) -> int:
    """Return the start time of a process, in clock ticks since boot. Raise OSError."""
    # The name, in parentheses, may itself contain blanks, parentheses and newlines (proc(5)).
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def status(pid: int) -> bytes:
    """Return /proc/<pid>/status. Raise OSError."""
    with Path(f"/proc/{pid}/status").open("rb") as file:
        return file.read(STATUS_BYTES)


def read_file(path: Path) -> bytes:
    """Read a file of runc or containerd. Raise OSError, also if it exceeds STATE_LIMIT."""
    return read_regular(path, most=STATE_LIMIT)


def word(path: Path) -> bytes:
    """Read a kernel file that contains one word; return b"" if it cannot be read."""
    try:
        return path.read_bytes().strip()
    except OSError:
        return b""
