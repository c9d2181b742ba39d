"""What fresh machines are made of, and what the packages for them need, while there is a network."""

import hashlib
import sys
import tempfile
from pathlib import Path

from integration.kind.prepare import ensure_base
from integration.node.commands import run, step
from integration.node.packages import (
    UBUNTU_KEYS,
    cache_directory,
    ensure_installed,
    ensure_unpacked,
    ubuntu_keyring,
)
from release.bundle import MACHINES, fetch_bundle

DEBIAN = ("bookworm", "trixie")
"""Debian 12 and 13."""

UBUNTU = ("noble",)
"""Ubuntu 24.04, which has other versions of Python, Docker, systemd and the plugins."""

SUITES = (*DEBIAN, *UBUNTU)

RECOMMENDED = ("docker.io", "containernetworking-plugins", "iptables")
"""A root has the archives of these and of what they need, as a download leaves them; they are not installed."""

_PACKAGES = ("systemd-sysv", "dbus", "python3", "dnf", "iproute2", "kmod", "procps")
_DOWNLOAD = "apt-get install --download-only --yes --quiet --option APT::Install-Recommends=true"
_BUILD_TOOLS = ("setuptools>=77",)
_SECONDS = 1800


def root_archive(suite: str) -> Path:
    """Return where the archive of a root is."""
    return cache_directory() / f"root-{suite}-{digest(suite, *_packages(suite), *RECOMMENDED)}.tar"


def build_tools() -> Path:
    """Return the directory of the wheels that pip needs to build a wheel."""
    return cache_directory() / f"wheels-build-{digest(*_BUILD_TOOLS)}"


def ensure_roots() -> None:
    """Make the archives that are missing."""
    for suite in SUITES:
        archive = root_archive(suite)
        if archive.exists():
            continue
        with step(f"making a root of {suite}"), tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            made = Path(scratch, "root.tar")
            include = f"--include={','.join(_packages(suite))}"
            download = f'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" {_DOWNLOAD} {" ".join(RECOMMENDED)}'
            words = ["mmdebstrap", "--quiet", "--variant=minbase", include, "--skip=cleanup/apt"]
            run([*words, *_archive_options(suite), f"--customize-hook={download}", suite, made], timeout=_SECONDS)
            made.rename(archive)


def _packages(suite: str) -> tuple[str, ...]:
    # What Debian requires of every root, Ubuntu does not.
    return (*_PACKAGES, "apt") if suite in UBUNTU else _PACKAGES


def _archive_options(suite: str) -> list[str]:
    """Return what mmdebstrap, which knows where the archive of a suite is, has to be told about it."""
    if suite not in UBUNTU:
        return []
    # Docker and the plugins are in universe.
    return [f"--keyring={ubuntu_keyring(ensure_unpacked(UBUNTU_KEYS))}", "--components=main,universe"]


def ensure_build_tools() -> None:
    """Fetch what is missing of the wheels that pip needs to build a wheel."""
    if not build_tools().exists():
        partial = build_tools().with_suffix(".new")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--only-binary=:all:", "--dest", partial, *_BUILD_TOOLS], timeout=_SECONDS)
        partial.rename(build_tools())


def digest(*words: str) -> str:
    """Return what names a thing in the cache by what it is made of."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


if __name__ == "__main__":
    ensure_installed(["mmdebstrap", "rpm"])
    fetch_bundle(list(MACHINES.values()))
    ensure_build_tools()
    ensure_base()
    ensure_roots()
