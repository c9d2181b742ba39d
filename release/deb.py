"""The Debian package, by dpkg-deb."""

import hashlib
import shutil
import textwrap
from pathlib import Path

from release.archive import normalise
from release.bundle import GLIBC, LIBSTDCXX, Machine
from release.commands import run_tool
from release.source import Source, maintainer_of, supported_pythons
from release.stage import CONFIGURATION

SUMMARY = "Kubernetes CRI server in front of the Docker Engine"
DESCRIPTION = (
    "Lets Kubernetes run pods on the Docker Engine: a CRI v1 server that the kubelet and crictl talk to, with pod "
    "networking by CNI. Brings its libraries in an environment of its own."
)

_CONTROL = """\
Package: pydockershim
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: python3 (>= {oldest}), python3 (<< {beyond}), libc6 (>= {glibc}), libstdc++6 (>= {libstdcxx})
Recommends: docker.io | docker-ce | moby-engine, containernetworking-plugins, iptables
Section: admin
Priority: optional
Description: {summary}
{description}
"""


def build_deb(source: Source, stage: Path, into: Path, *, machine: Machine) -> Path:
    """Build the package of a staged tree, which gets its control files."""
    control = stage / "DEBIAN"
    control.mkdir()
    try:
        _write_control(source, stage, control, machine=machine)
        normalise(control, time=source.time)
        package = into / f"pydockershim_{source.version}_{machine.deb}.deb"
        # gzip: every dpkg reads it, and the libraries are compressed in seconds.
        words: list[str | Path] = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", stage, package]
        run_tool(words, environ=source.environ)
    finally:
        shutil.rmtree(control)
    return package


def _write_control(source: Source, stage: Path, control: Path, *, machine: Machine) -> None:
    files = [path for path in sorted(stage.rglob("*")) if control not in (path, *path.parents)]
    plain = [path for path in files if path.is_file() and not path.is_symlink()]
    pythons = supported_pythons(source.tree)
    text = _CONTROL.format(
        version=source.version,
        architecture=machine.deb,
        maintainer=maintainer_of(source.tree),
        size=sum(path.stat().st_size for path in plain) // 1024,
        oldest=pythons[0],
        beyond=f"3.{int(pythons[-1].removeprefix('3.')) + 1}",
        glibc=GLIBC,
        libstdcxx=LIBSTDCXX,
        summary=SUMMARY,
        description=textwrap.indent(textwrap.fill(DESCRIPTION, 78), " "),
    )
    (control / "control").write_text(text)
    (control / "conffiles").write_text(f"{CONFIGURATION}\n")
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n" for path in plain)
    (control / "md5sums").write_text("".join(sums))
    scripts = {name: (source.tree / "packaging/scripts" / f"{name}.sh").read_text() for name in _SCRIPTS}
    _script(control / "postinst", 'if [ "$1" = configure ]; then', scripts["installed"])
    _script(control / "prerm", 'if [ "$1" = remove ]; then', scripts["removing"], after=scripts["clean"])
    purged = f'if [ "$1" = purge ]; then\n{scripts["purged"]}fi\n'
    _script(control / "postrm", 'if [ "$1" = remove ]; then', scripts["removed"], after=purged)


_SCRIPTS = ("installed", "removing", "removed", "clean", "purged")


def _script(place: Path, condition: str, body: str, *, after: str = "") -> None:
    place.write_text(f"#!/bin/sh\nset -e\n{condition}\n{body}fi\n{after}")
    place.chmod(0o755)
