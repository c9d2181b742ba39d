"""The tree of files that the Debian package and the RPM put onto a node."""

import gzip
import re
import shutil
from pathlib import Path

from release.archive import PROGRAM, normalise
from release.bundle import Machine
from release.environment import COMMON, LAUNCHER, PYTHON, add_launcher, make_environment
from release.licences import copyright_text, licences_of
from release.source import Source
from shim import share
from shim.install.layout import OCI_RUNTIME

PREFIX = Path("/usr/lib/pydockershim")
COMMAND = Path("/usr/bin/pydockershim")
CONFIGURATION = Path("/etc/pydockershim/config.toml")
UNITS = Path("/usr/lib/systemd/system")
DOCUMENTATION = Path("/usr/share/doc/pydockershim")

_FOR_SHELLS = {
    "completions/pydockershim.bash": "/usr/share/bash-completion/completions/pydockershim",
    "completions/_pydockershim": "/usr/share/zsh/vendor-completions/_pydockershim",
    "completions/pydockershim.fish": "/usr/share/fish/vendor_completions.d/pydockershim.fish",
}
"""Below packaging, and where each shell looks."""
_MAN = Path("/usr/share/man/man8")

_EXAMPLES = ("cni_conf_examples", "docs", "packaging/docker", "packaging/monitoring")
"""Directories of the documentation, where the links of its pages lead."""

_EXEC_START = re.compile(r"^(ExecStart=)\S+", re.MULTILINE)


def make_stage(source: Source, stage: Path, *, wheel: Path, wheels: Path, machine: Machine) -> None:
    """Make the tree in the directory `stage`, with one time and plain modes."""
    home = _at(stage, PREFIX)
    make_environment(source, home, wheel=wheel, wheels=wheels, machine=machine)
    add_launcher(source, home, prefix=PREFIX, python=Path("/usr/bin/python3"))
    command = _at(stage, COMMAND)
    command.parent.mkdir(parents=True)
    command.symlink_to(Path("../..") / (PREFIX / LAUNCHER).relative_to("/"))
    for name in share.UNITS:
        _write(_at(stage, UNITS / name), _EXEC_START.sub(rf"\g<1>{COMMAND}", share.unit(name)))
    _write(_at(stage, CONFIGURATION), share.configuration())
    _at(stage, CONFIGURATION.with_name("conf.d")).mkdir()
    _add_oci_runtime(_at(stage, OCI_RUNTIME))
    _add_documentation(source, _at(stage, DOCUMENTATION), home)
    _add_help(source, stage)
    normalise(stage, time=source.time)


def _add_oci_runtime(place: Path) -> None:
    program = PREFIX / COMMON / "shim/oci_runtime/__main__.py"
    _write(place, share.oci_runtime(python=str(PREFIX / PYTHON), program=str(program)))
    place.chmod(PROGRAM)


def _add_documentation(source: Source, place: Path, home: Path) -> None:
    _write(place / "copyright", copyright_text(licences_of(home)))
    shutil.copyfile(source.tree / "README.md", place / "README.md")
    shutil.copyfile(source.tree / "SECURITY.md", place / "SECURITY.md")
    for name in _EXAMPLES:
        shutil.copytree(source.tree / name, place / name)
    changelog = gzip.compress((source.tree / "CHANGELOG.md").read_bytes(), mtime=source.time)
    (place / "changelog.gz").write_bytes(changelog)


def _add_help(source: Source, stage: Path) -> None:
    """Add what shells complete, and the man pages."""
    for name, place in _FOR_SHELLS.items():
        _write(_at(stage, Path(place)), (source.tree / "packaging" / name).read_text())
    pages = _at(stage, _MAN)
    pages.mkdir(parents=True)
    for page in (source.tree / "packaging/man").iterdir():
        (pages / f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=source.time))


def _at(stage: Path, path: Path) -> Path:
    return stage / path.relative_to("/")


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
