"""The two kinds of packages for a fresh machine: how each is installed there, and a newer version of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from integration.node.commands import run
from integration.packages.fresh.machine import Machine
from release.build import Build
from release.bundle import this_machine
from release.rpm import LIBRARIES, build_rpm
from release.source import copied_source
from shim import __version__

NEWER = f"{__version__}+newer"
_ADDED = "usr/lib/pydockershim/common/shim/added"
"""A directory that only the newer version has."""
_APT = ("apt-get", "--yes")
_DNF = ("dnf", "--assumeyes", "--releasever=1", "--disablerepo=*")
_SECONDS = 300
_PROVIDES = MappingProxyType({"bash": "/bin/sh", "libstdc++": LIBRARIES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Commands for a package file, which they end with, and for the installed package."""

    install: tuple[str, ...]
    """Also upgrades an older version."""
    downgrade: tuple[str, ...]
    remove: tuple[str, ...]
    version: tuple[str, ...]
    build: Callable[[Path], tuple[Path, Path]]
    """Build the package and a newer version, below a directory."""
    prepare: Callable[[Machine, Path], None]
    """Prepare a machine for the package, with files below a directory."""
    left: frozenset[str] = frozenset()
    """Paths that stay after a removal if config.toml was edited."""


def build_debs(directory: Path) -> tuple[Path, Path]:
    """Build the Debian package, and a copy with a newer version."""
    build = _build(directory)
    [package] = build.debs()
    tree = directory / "newer"
    run(["dpkg-deb", "--raw-extract", package, tree], timeout=_SECONDS)
    _add(tree)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {NEWER}\n"))
    newer = directory / "pydockershim_newer.deb"
    run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, newer], timeout=_SECONDS)
    return package, newer


def build_rpms(directory: Path) -> tuple[Path, Path]:
    """Build the RPM, and a copy with a newer version."""
    build = _build(directory)
    [package] = build.rpms()
    stage = build.stage(this_machine())
    _add(stage)
    newer = build_rpm(replace(build.source, version=NEWER), stage, directory / "made", machine=this_machine())
    return package, newer


def build_names(directory: Path, packages: Mapping[str, str]) -> list[Path]:
    """Build RPMs without files, given versions by name, for programs that were not installed by rpm.

    The shell and the C++ library, which every distribution has, are always included.
    """
    directory.mkdir()
    for name, version in {**packages, "bash": "5", "libstdc++": "12"}.items():
        provides = f"Provides: {_PROVIDES[name]}\n" if name in _PROVIDES else ""
        spec = directory / f"{name}.spec"
        spec.write_text(
            f"Name: {name}\nVersion: {version}\nRelease: 1\nSummary: {name}\nLicense: none\n{provides}"
            "%description\n%files\n"
        )
        run(["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {directory}", spec], timeout=_SECONDS)
    return sorted(directory.glob("RPMS/*/*.rpm"))


def dnf_install(machine: Machine, packages: Sequence[Path], *options: str) -> tuple[int, str]:
    """Install RPMs and return dnf's exit status and output."""
    return machine.tried(*_DNF, *options, "install", *(machine.put(package) for package in packages))


def _build(directory: Path) -> Build:
    made = directory / "made"
    made.mkdir()
    source = copied_source(directory / "source")
    return Build(source, scratch=directory, into=made, machines=[this_machine()])


def _add(tree: Path) -> None:
    added = tree / _ADDED
    added.mkdir()
    (added / "__init__.py").write_text('"""New in this version."""\n')


def _prepare_deb(_machine: Machine, _directory: Path) -> None:
    """Do nothing: the machine is Debian."""


def _prepare_rpm(machine: Machine, directory: Path) -> None:
    """Register the Python and the C library that dpkg has installed with rpm."""
    python = machine.run("python3", "-c", "import platform; print(platform.python_version())").strip()
    library = machine.run("getconf", "GNU_LIBC_VERSION").split()[1]
    names = build_names(directory / "names", {"python3": python, "glibc": library})
    code, words = dnf_install(machine, names)
    assert code == 0, words


KINDS = MappingProxyType(
    {
        "deb": Kind(
            install=(*_APT, "install"),
            downgrade=(*_APT, "install", "--allow-downgrades"),
            remove=(*_APT, "purge", "pydockershim"),
            version=("dpkg-query", "--show", "pydockershim"),
            build=build_debs,
            prepare=_prepare_deb,
        ),
        "rpm": Kind(
            install=(*_DNF, "install"),
            downgrade=(*_DNF, "downgrade"),
            remove=(*_DNF, "remove", "pydockershim"),
            version=(*_DNF, "list", "--installed", "pydockershim"),
            build=build_rpms,
            prepare=_prepare_rpm,
            left=frozenset({"/etc/pydockershim", "/etc/pydockershim/config.toml.rpmsave"}),
        ),
    }
)
