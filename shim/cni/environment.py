"""The CNI plugin that a process is, or that has started it, by its environment.

The read may hang with the process: `shim.cni.orphans` has this called in the helper process. So this module imports
little.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

ENVIRONMENT_LIMIT = 1 << 20
"""Bytes read of the environment of one process. That of a plugin is the server's with some more, a few KiB; but a
process of a pod that may (CAP_SYS_RESOURCE) makes any part of its memory its environment."""


def sandboxes_of_plugins(processes: Sequence[Path], container_ids: Collection[str]) -> list[str]:
    """Return `sandbox_of_plugin` of several processes, in order."""
    return [sandbox_of_plugin(process, container_ids) for process in processes]


def sandbox_of_plugin(process: Path, container_ids: Collection[str]) -> str:
    """Return which of these sandboxes a process works for, by its directory in /proc; empty for all other processes."""
    try:
        with (process / "environ").open("rb", buffering=0) as file:
            environment = _beginning(file)
    except OSError:  # it has ended, or is the kernel's
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
