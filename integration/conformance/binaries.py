"""Upstream's programs: their paths and versions."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.node.commands import NodeError, run

_SECONDS = 60.0

CRITEST = ("critest",)
NODE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
NODE_E2E = ("e2e_node.test", "ginkgo", "kubelet", "agnhost", "sampledeviceplugin", "regression-issue-74839")
"""Kubernetes' own suite of a node, and the programs of its images."""
EXTRAS = ("kube-proxy", "crictl")
"""Without one of these programs, only the scenarios that name it are skipped."""

_ASK: Mapping[str, Sequence[str]] = {
    "critest": ("-version",),
    "kubectl": ("version", "--client"),
    "kubeadm": ("version", "-o", "short"),
    "ginkgo": ("version",),
}
_WITHOUT_VERSION = ("e2e_node.test", "agnhost", "sampledeviceplugin", "regression-issue-74839")
_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+[\w.+~-]*)")


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its version, which is empty for a program that prints none."""

    path: Path
    version: str


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs that were found, and the directory that was searched."""

    directory: Path | None
    programs: Mapping[str, Program]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names of programs that were not found."""
        return [name for name in names if name not in self.programs]

    def explain(self, missing: Sequence[str]) -> str:
        """Describe what is missing, and where to put it."""
        places = f"{self.directory} or on PATH" if self.directory else "a directory (BIN=dir) or on PATH"
        return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; put it in {places}"

    def __getitem__(self, name: str) -> Path:
        """Return the path of a program that was found."""
        return self.programs[name].path


def find(directory: Path | None, names: Sequence[str] = (*CRITEST, *NODE, *EXTRAS, *NODE_E2E)) -> Binaries:
    """Look for programs in a directory and then on PATH, and query their versions.

    Raises NodeError for a missing directory, and for a program that fails or prints no version.
    """
    if directory is not None and not directory.is_dir():
        raise NodeError(f"find binaries: {directory} is not a directory")
    path = os.pathsep.join([*([str(directory.absolute())] if directory else ()), os.environ["PATH"]])
    found = {name: where for name in names if (where := shutil.which(name, path=path))}
    return Binaries(directory, {name: Program(Path(where), _ask(name, Path(where))) for name, where in found.items()})


def _ask(name: str, path: Path) -> str:
    if name in _WITHOUT_VERSION:
        return ""
    return version_of(run([path, *_ASK.get(name, ("--version",))], timeout=_SECONDS), name=name)


def version_of(banner: str, *, name: str) -> str:
    """Return the first version number that a program prints."""
    found = _VERSION.search(banner)
    if found is None:
        remedy = "use a release, or build it with a version"
        raise NodeError(f"read the version of {name}: none in {banner.strip()!r}; {remedy}")
    return found[1]
