"""What fresh machines are made of, and what the packages for them need, while there is a network."""

import hashlib
import sys
import tempfile
from pathlib import Path

from integration.kind.prepare import ensure_base
from integration.node.commands import run, step
from integration.node.packages import cache_directory, ensure_installed
from release.bundle import MACHINES, fetch_bundle

SUITES = ("bookworm", "trixie")
"""Debian 12 and 13."""

RECOMMENDED = ("docker.io", "containernetworking-plugins", "iptables")
"""A root has the archives of these and of what they need, as a download leaves them; they are not installed."""

_PACKAGES = ("systemd-sysv", "dbus", "python3", "dnf", "iproute2", "kmod", "procps")
_DOWNLOAD = "apt-get install --download-only --yes --quiet --option APT::Install-Recommends=true"
_BUILD_TOOLS = ("setuptools>=77",)
_SECONDS = 1800


def root_archive(suite: str) -> Path:
    """Return where the archive of a root is."""
    return cache_directory() / f"root-{suite}-{_digest(suite, *_PACKAGES, *RECOMMENDED)}.tar"


def build_tools() -> Path:
    """Return the directory of the wheels that pip needs to build a wheel."""
    return cache_directory() / f"wheels-build-{_digest(*_BUILD_TOOLS)}"


def ensure_roots() -> None:
    """Make the archives that are missing."""
    for suite in SUITES:
        archive = root_archive(suite)
        if archive.exists():
            continue
        with step(f"making a root of {suite}"), tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            made = Path(scratch, "root.tar")
            include = f"--include={','.join(_PACKAGES)}"
            download = f'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" {_DOWNLOAD} {" ".join(RECOMMENDED)}'
            words = ["mmdebstrap", "--quiet", "--variant=minbase", include, "--skip=cleanup/apt"]
            run([*words, f"--customize-hook={download}", suite, made], timeout=_SECONDS)
            made.rename(archive)


def ensure_build_tools() -> None:
    """Fetch what is missing of the wheels that pip needs to build a wheel."""
    if not build_tools().exists():
        partial = build_tools().with_suffix(".new")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--only-binary=:all:", "--dest", partial, *_BUILD_TOOLS], timeout=_SECONDS)
        partial.rename(build_tools())


def _digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


if __name__ == "__main__":
    ensure_installed(["mmdebstrap", "rpm"])
    fetch_bundle(list(MACHINES.values()))
    ensure_build_tools()
    ensure_base()
    ensure_roots()
