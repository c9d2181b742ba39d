"""Recognition of CNI plugins and their children by their environment.

Reading the environment of a hung process may hang, so `shim.cni.orphans` runs these functions in the helper process for
host paths. This module therefore imports little.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

ENVIRONMENT_LIMIT = 1 << 20
"""Most bytes read of a process's environment. A plugin has the server's environment and some variables more, a few KiB.
A process of a pod with CAP_SYS_RESOURCE can present any part of its memory as its environment."""


def sandboxes_of_plugins(processes: Sequence[Path], container_ids: Collection[str]) -> list[str]:
    """Return `sandbox_of_plugin` of each process, in order."""
    return [sandbox_of_plugin(process, container_ids) for process in processes]


def sandbox_of_plugin(process: Path, container_ids: Collection[str]) -> str:
    """Return the sandbox that a process works for, or an empty text. `process` is its directory in /proc."""
    try:
        with (process / "environ").open("rb", buffering=0) as file:
            environment = _beginning(file)
    except OSError:  # the process has ended, or is a kernel thread
        return ""
    pairs = (pair.decode(errors="replace").partition("=") for pair in environment.split(b"\0") if pair[:4] == b"CNI_")
    given = {name: value for name, _, value in pairs}
    sandbox = given.get("CNI_CONTAINERID", "")
    return sandbox if "CNI_COMMAND" in given and sandbox in container_ids else ""


def _beginning(file: IO[bytes]) -> bytes:
    content = bytearray()
    while len(content) < ENVIRONMENT_LIMIT and (part := file.read(ENVIRONMENT_LIMIT - len(content))):
        content += part
    return bytes(content)
