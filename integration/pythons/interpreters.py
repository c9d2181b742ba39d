"""Interpreters of other versions: the distribution's, another of the machine, or Debian's, unpacked.

A Python of a later Debian release may need a later C library than the machine's. So that library is unpacked too, and
the program's headers name it and its loader; child processes use the machine's.
"""

import shutil
from pathlib import Path

from integration.node.commands import NodeError, run
from integration.node.own_libraries import use_own_libraries
from integration.node.packages import Bundle, ensure_unpacked

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_OF_DISTRIBUTION = Path("/usr/bin")
_SECONDS = 60
_LIBRARIES = (
    *("libbz2-1.0", "libc6", "libdb5.3t64", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libncursesw6"),
    *("libreadline8t64", "libsqlite3-0", "libssl3t64", "libstdc++6", "libtinfo6", "libuuid1", "libzstd1", "zlib1g"),
)


def find(version: str) -> Path:
    """Return an interpreter of the distribution, which packages use, or from PATH, pyenv or Debian's next release.

    Raise NodeError if none runs.
    """
    name = f"python{version}"
    of_distribution = _OF_DISTRIBUTION / name
    of_pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/{name}"))
    for path in (of_distribution, shutil.which(name), *of_pyenv):
        if path is not None and _runs(Path(path)):
            return Path(path)
    return _of_debian(version)


def exact_version(interpreter: Path) -> str:
    """Return the exact version."""
    code = "import platform; print(platform.python_version())"
    return run([interpreter, "-I", "-c", code], timeout=_SECONDS).strip()


def _runs(interpreter: Path) -> bool:
    """Return whether the interpreter runs; a shim of pyenv on PATH may not."""
    try:
        exact_version(interpreter)
    except NodeError:
        return False
    return True


def _of_debian(version: str) -> Path:
    name = f"python{version}"
    packages = (name, f"{name}-minimal", f"lib{name}-minimal", f"lib{name}-stdlib")
    unpacked = ensure_unpacked(
        Bundle(name=name, suites=("testing", "unstable"), packages=tuple(sorted((*packages, *_LIBRARIES))))
    )
    interpreter = unpacked.root / "usr/bin" / name
    if not _runs(interpreter):
        use_own_libraries(interpreter, unpacked)
    return interpreter
