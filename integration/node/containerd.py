"""What containerd keeps for the containers of an engine: shims and tasks."""

from pathlib import Path

from integration.node.engine import Engine
from integration.node.processes import command

_COMM = "containerd-shim"
"""Of `containerd-shim-runc-v2`, as the kernel cuts it."""


def bundles(engine: Engine) -> Path:
    """Return containerd's directory of tasks, which has one below it for each."""
    return engine.home / "exec/containerd/daemon/io.containerd.runtime.v2.task/moby"


def tasks(engine: Engine) -> set[str]:
    """Return the ids of the containers of which containerd has a task, that runs or has ended."""
    return {path.name for path in bundles(engine).glob("*")}


def shims(engine: Engine) -> set[int]:
    """Return the process ids of the containerd-shims of an engine; only while no process hangs in the kernel."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            is_shim = path.read_text().startswith(_COMM)
        except OSError:  # it has just ended
            continue
        if is_shim and str(engine.home).encode() in command(int(path.parent.name)):
            found.add(int(path.parent.name))
    return found
