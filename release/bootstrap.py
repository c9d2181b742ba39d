"""Start of the single file: unpack the environment once, and run it in place of this process.

It runs on any Python 3, to say what is missing in words, and needs nothing but the standard library.
"""

import os
import platform
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NoReturn

_unset: Any = ""
# Filled in by release/pyz.py.
VERSION = _unset
MACHINE = _unset
DIGEST = _unset
PYTHONS = _unset

LAUNCHER = """\
import sys

from shim.cli import main

sys.exit(main())
"""
ARCHIVED = "environment/"


def main() -> None:
    """Run pydockershim, with the arguments of this program."""
    check_machine()
    archive = Path(sys.argv[0]).absolute()
    home = place() / f"{VERSION}-{DIGEST}"
    if not home.is_dir():
        unpack(archive, home)
    python = home / "bin/python3"
    words = [str(python), "-I", str(home / "bin/pydockershim"), *sys.argv[1:]]
    os.execve(str(python), words, {**os.environ, "PYDOCKERSHIM_SINGLE_FILE": str(archive)})


def check_machine() -> None:
    """End with what is missing where this file cannot run."""
    version = f"3.{sys.version_info.minor}"
    if version not in PYTHONS or sys.implementation.name != "cpython":
        found = f"{sys.implementation.name} {platform.python_version()} ({sys.executable})"
        fail(f"needs CPython {' or '.join(PYTHONS)}, this is {found}")
    machine = os.uname().machine
    if machine != MACHINE:
        fail(
            f"this file is for {MACHINE}, and this machine is {machine}; there are files for x86_64 and aarch64 alone, "
            "since grpcio or msgspec has no wheels for others: there install the wheel with pip, which compiles them"
        )
    if platform.libc_ver()[0] != "glibc":
        fail("this file needs glibc; with musl install the wheel with pip")


def place() -> Path:
    """Return where environments are unpacked: for the machine, or by another user than root for that user alone."""
    if os.geteuid() == 0:
        return Path("/usr/local/lib/pydockershim")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pydockershim"


def unpack(archive: Path, home: Path) -> None:
    """Unpack beside `home`, then rename: another start at the same time finds it whole or not at all."""
    home.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=str(home.parent)))
    try:
        with zipfile.ZipFile(str(archive)) as packed:
            names = [name for name in packed.namelist() if name.startswith(ARCHIVED)]
            packed.extractall(str(partial), names)
        made = partial / ARCHIVED
        (made / "bin").mkdir()
        base = Path(os.path.realpath(sys.executable))
        (made / "bin/python3").symlink_to(base)
        (made / "bin/pydockershim").write_text(LAUNCHER)
        (made / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
        made.chmod(0o755)
        try:
            made.rename(home)
        except OSError:
            if not home.is_dir():
                raise
    finally:
        shutil.rmtree(str(partial), ignore_errors=True)


def fail(words: str) -> NoReturn:
    """End with an error."""
    sys.exit("pydockershim: error: " + words)


if __name__ == "__main__":
    main()
