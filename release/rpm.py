"""The RPM, by rpmbuild, for distributions whose Python is 3.11 or newer, also beside an older one."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from release.bundle import GLIBC, Machine
from release.commands import run_tool
from release.deb import DESCRIPTION, SUMMARY
from release.environment import PYTHON
from release.source import Source, maintainer_of, supported_pythons
from release.stage import CONFIGURATION, PREFIX

_SPEC = """\
Name: pydockershim
Version: {version}
Release: 1
Summary: {summary}
License: Apache-2.0
Packager: {maintainer}
Requires: {pythons}
Requires: glibc >= {glibc}
Requires: {libraries}
Recommends: containernetworking-plugins
AutoReqProv: no

%description
{description}

%install
cp -a {stage}/. %{{buildroot}}/
mv %{{buildroot}}{of_debian} %{{buildroot}}{of_rpm}

%preun
if [ "$1" = 0 ]; then
{erasing}
fi
{clean}
%postun
{removed}
# Last of all, also on an upgrade: then the files of the older version are gone.
%posttrans
{choose_python}
{installed}
%files
{files}
"""
LIBRARIES = "libstdc++.so.6()(64bit)"
"""By its file: distributions give the package different names."""
_COMPLETIONS = {"of_debian": "/usr/share/zsh/vendor-completions", "of_rpm": "/usr/share/zsh/site-functions"}
"""Where zsh searches for those of packages."""
_DEFINES = {
    # The build's machine, user and time are not part of the content.
    "_buildhost": "localhost",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    # The libraries are taken as they are: not stripped, not compiled.
    "__os_install_post": "%{nil}",
    "debug_package": "%{nil}",
    "_build_id_links": "none",
    "_binary_payload": "w6.gzdio",
}
_OF_EVERY_SYSTEM = frozenset(
    {
        *("/etc", "/usr", "/usr/bin", "/usr/lib", "/usr/lib/systemd", "/usr/lib/systemd/system", "/usr/libexec"),
        *("/usr/share", "/usr/share/doc", "/usr/share/man", "/usr/share/man/man8"),
    }
)
_CHOOSE_PYTHON = """\
# The Python of the distribution may be older, with a newer one beside it.
for python in {programs}; do
    if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        ln -sf "$python" {link}
        break
    fi
done
"""


def build_rpm(source: Source, stage: Path, into: Path, *, machine: Machine) -> Path:
    """Build the RPM of a staged tree."""
    with TemporaryDirectory(prefix="pydockershim-rpm-") as directory:
        top = Path(directory)
        spec = top / "pydockershim.spec"
        spec.write_text(_spec(source, stage))
        defines = {**_DEFINES, "_topdir": str(top), "_tmppath": str(top / "tmp")}
        flags = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
        run_tool(
            ["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", machine.name, *flags, spec], environ=source.environ
        )
        (made,) = top.glob(f"RPMS/{machine.name}/*.rpm")
        package = into / made.name
        shutil.copyfile(made, package)
    return package


def _spec(source: Source, stage: Path) -> str:
    pythons = supported_pythons(source.tree)
    scripts = {name: (source.tree / f"packaging/scripts/{name}.sh").read_text() for name in _SCRIPTS}
    beyond = f"3.{int(pythons[-1].removeprefix('3.')) + 1}"
    own = f"(python3 >= {pythons[0]} with python3 < {beyond})"
    beside = " or ".join(f"python{python}" for python in reversed(pythons))
    programs = ["/usr/bin/python3", *(f"/usr/bin/python{python}" for python in reversed(pythons))]
    return _SPEC.format(
        version=source.version,
        summary=SUMMARY,
        maintainer=maintainer_of(source.tree),
        description=DESCRIPTION,
        pythons=f"({own} or {beside})",
        glibc=GLIBC,
        libraries=LIBRARIES,
        stage=stage,
        choose_python=_CHOOSE_PYTHON.format(programs=" ".join(programs), link=PREFIX / PYTHON),
        files="\n".join(_files(stage)),
        **_COMPLETIONS,
        **scripts,
    )


def _files(stage: Path) -> Iterator[str]:
    """Yield the list of files and of directories that not every system has; the others are left to their packages."""
    yield "%defattr(-,root,root,-)"
    yield str(PREFIX)
    yield f"%config(noreplace) {CONFIGURATION}"
    home = stage / PREFIX.relative_to("/")
    for path in sorted(stage.rglob("*")):
        installed = Path("/") / path.relative_to(stage)
        if path.is_relative_to(home) or installed == CONFIGURATION or str(installed) in _OF_EVERY_SYSTEM:
            continue
        place = str(installed).replace(_COMPLETIONS["of_debian"], _COMPLETIONS["of_rpm"])
        yield f"%dir {place}" if path.is_dir() and not path.is_symlink() else place


_SCRIPTS = ("installed", "erasing", "removed", "clean")
