"""containerd's state for the containers of an engine: containerd-shims and tasks."""

from pathlib import Path

from integration.node.engine import Engine
from integration.node.processes import command

_COMM = "containerd-shim"
"""`containerd-shim-runc-v2`, as truncated by the kernel."""


def bundles(engine: Engine) -> Path:
    """Return containerd's directory of tasks, with a subdirectory for each."""
    return engine.home / "exec/containerd/daemon/io.containerd.runtime.v2.task/moby"


def tasks(engine: Engine) -> set[str]:
    """Return the ids of the containers with a task in containerd, running or exited."""
    return {path.name for path in bundles(engine).glob("*")}


def shims(engine: Engine) -> set[int]:
    """Return the pids of an engine's containerd-shims. Blocks while a process hangs in the kernel."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            is_shim = path.read_text().startswith(_COMM)
        except OSError:  # the process has just ended
            continue
        if is_shim and str(engine.home).encode() in command(int(path.parent.name)):
            found.add(int(path.parent.name))
    return found
