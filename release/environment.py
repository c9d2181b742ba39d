"""A private environment with the server and its libraries, for every CPython that it supports.

It has the shape of a virtual environment, so that Python itself finds the libraries of its own version in
`lib/python3.X/site-packages`. What does not depend on the version is in `common`. It needs no pip on the node, every
file belongs to a package, and a distribution's upgrade to a newer Python needs no new package.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release.bundle import Machine, platform_flags, wheels_for
from release.commands import run_tool
from release.source import Source, supported_pythons

COMMON = "common"
LAUNCHER = Path("bin/pydockershim")
PYTHON = Path("bin/python3")

_CONFIGURATION = """\
home = {home}
include-system-site-packages = false
"""
_LAUNCHER = '''\
#!{python} -I
"""pydockershim, with the libraries for the Python that runs it."""

import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
SUPPORTED = {supported!r}

if "3.%d" % sys.version_info.minor not in SUPPORTED:
    sys.exit(
        "pydockershim: error: built for CPython " + ", ".join(SUPPORTED) + ", but " + sys.executable
        + " is %d.%d; install a build of pydockershim for it" % sys.version_info[:2]
    )

from shim.cli import main

sys.exit(main())
'''


def make_environment(source: Source, home: Path, *, wheel: Path, wheels: Path, machine: Machine) -> None:
    """Make the environment in the new directory `home`."""
    pythons = supported_pythons(source.tree)
    found = {python: sorted(wheels_for(wheels, machine, python).glob("*.whl")) for python in pythons}
    names = [{path.name for path in paths} for paths in found.values()]
    shared = set.intersection(*names)
    first = pythons[0]
    common = [path for path in found[first] if path.name in shared]
    _install(source, home / COMMON, [wheel, *common], machine=machine, python=first)
    for python, paths in found.items():
        place = home / "lib" / f"python{python}" / "site-packages"
        _install(source, place, [path for path in paths if path.name not in shared], machine=machine, python=python)
        (place / "common.pth").write_text(f"../../../{COMMON}\n")


def add_launcher(source: Source, home: Path, *, prefix: Path, python: Path) -> None:
    """Add what starts the server from `prefix`, where the environment will be, by the Python at `python`."""
    (home / "bin").mkdir()
    (home / PYTHON).symlink_to(python)
    (home / "pyvenv.cfg").write_text(_CONFIGURATION.format(home=python.parent))
    launcher = home / LAUNCHER
    launcher.write_text(launcher_text(supported_pythons(source.tree), python=prefix / PYTHON))
    launcher.chmod(0o755)


def launcher_text(pythons: Sequence[str], *, python: Path) -> str:
    """Return the program that starts the server with these CPythons, run by the one at `python`."""
    return _LAUNCHER.format(python=python, supported=tuple(pythons))


def _install(source: Source, place: Path, wheels: Sequence[Path], *, machine: Machine, python: str) -> None:
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    words: list[str | Path] = [*pip, "install", "--no-index", "--no-deps", "--no-compile", "--target", place]
    # pip says that it runs as root, which does no harm with --target.
    run_tool([*words, "--root-user-action=ignore", *platform_flags(machine, python), *wheels], environ=source.environ)
    shutil.rmtree(place / "bin", ignore_errors=True)
    for note in place.glob("*.dist-info/direct_url.json"):
        _forget(note)


def _forget(note: Path) -> None:
    """Remove a note of where a wheel was on this machine, and its row in the record, which has its digest."""
    record = note.with_name("RECORD")
    name = f"{note.parent.name}/{note.name},"
    rows = record.read_text().splitlines(keepends=True)
    record.write_text("".join(row for row in rows if not row.startswith(name)))
    note.unlink()
