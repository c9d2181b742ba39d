"""All kinds of packages, each made of what it needs, which is made once."""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from release.bundle import Machine, fetch_bundle
from release.deb import build_deb
from release.licences import write_licences
from release.python_dist import build_sdist, build_wheel
from release.pyz import build_pyz
from release.rpm import build_rpm
from release.sbom import write_sbom
from release.source import Source, copied_source
from release.stage import make_stage


class Build:
    """One build of a source for some machine types. What it makes is in `into`, whatever is in between in `scratch`."""

    def __init__(self, source: Source, *, scratch: Path, into: Path, machines: Sequence[Machine]) -> None:
        self.source = source
        self._scratch = scratch
        self._into = into
        self._machines = machines
        self._stages: dict[str, Path] = {}

    @cached_property
    def wheel(self) -> Path:
        """The wheel of the server."""
        return build_wheel(self.source, self._into)

    @cached_property
    def bundle(self) -> Path:
        """The directory of the wheels of its libraries."""
        return fetch_bundle(self._machines)

    def stage(self, machine: Machine) -> Path:
        """Return the tree that packages for a machine hold."""
        if machine.name not in self._stages:
            stage = self._scratch / machine.name
            make_stage(self.source, stage, wheel=self.wheel, wheels=self.bundle, machine=machine)
            self._stages[machine.name] = stage
        return self._stages[machine.name]

    def wheels(self) -> list[Path]:
        """Build the wheel."""
        return [self.wheel]

    def sdists(self) -> list[Path]:
        """Build the sdist."""
        return [build_sdist(self.source, self._into)]

    def debs(self) -> list[Path]:
        """Build the Debian packages."""
        return [build_deb(self.source, self.stage(machine), self._into, machine=machine) for machine in self._machines]

    def rpms(self) -> list[Path]:
        """Build the RPMs."""
        return [build_rpm(self.source, self.stage(machine), self._into, machine=machine) for machine in self._machines]

    def single_files(self) -> list[Path]:
        """Build the single files."""
        return [build_pyz(self.source, self.stage(machine), self._into, machine=machine) for machine in self._machines]

    def sboms(self) -> list[Path]:
        """Write the bills of materials."""
        return [write_sbom(self.source, self.stage(machine), self._into, machine=machine) for machine in self._machines]

    def licences(self) -> list[Path]:
        """Write the licences of what is bundled."""
        return [write_licences(self.stage(self._machines[0]), self._into)]


KINDS: Mapping[str, Callable[[Build], list[Path]]] = MappingProxyType(
    {
        "wheel": Build.wheels,
        "sdist": Build.sdists,
        "deb": Build.debs,
        "rpm": Build.rpms,
        "pyz": Build.single_files,
        "sbom": Build.sboms,
        "licences": Build.licences,
    }
)
"""What can be built, by its name on the command line."""


def build_into(
    into: Path, kinds: Iterable[str], machines: Sequence[Machine], *, announce: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Build some kinds of packages in the directory `into`, which is emptied first; return the files."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    made: list[Path] = []
    with TemporaryDirectory(prefix="pydockershim-build-") as directory:
        scratch = Path(directory)
        source = copied_source(scratch / "source")
        build = Build(source, scratch=scratch, into=into, machines=machines)
        for kind in kinds:
            began = time.monotonic()
            new = KINDS[kind](build)
            for path in new:
                announce(f"{path.stat().st_size / 1e6:8.1f} MB  {time.monotonic() - began:5.1f} s  {path.name}")
            made += new
    return made
