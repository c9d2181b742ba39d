"""Unpacked programs that need newer libraries than this machine's."""

import platform
import shutil
from pathlib import Path

from integration.node.commands import NodeError, run
from integration.node.packages import Unpacked

_SECONDS = 60
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def ensure_runs(program: Path, unpacked: Unpacked) -> None:
    """Change a program that does not run with this machine's libraries, so that it runs with those in its bundle."""
    try:
        run([program, "--version"], timeout=_SECONDS)
    except NodeError:
        use_own_libraries(program, unpacked)


def use_own_libraries(program: Path, unpacked: Unpacked) -> None:
    """Change a program so that it runs with the C library and the other libraries of its bundle."""
    patchelf = shutil.which("patchelf")
    if patchelf is None:
        raise NodeError(f"run {program}: patchelf is missing: apt-get install patchelf")
    machine = platform.machine()
    libraries = unpacked.root / "usr/lib" / f"{machine}-linux-gnu"
    loader = libraries / _LOADERS[machine]
    run(
        [patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, program],
        timeout=_SECONDS,
    )
