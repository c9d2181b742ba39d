"""Prepares the root file systems of fresh machines and the dependencies of packages, which needs a network."""

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
"""Ubuntu 24.04, with other versions of Python, Docker, systemd and the plugins."""

SUITES = (*DEBIAN, *UBUNTU)

RECOMMENDED = ("docker.io", "containernetworking-plugins", "iptables")
"""A root has the downloaded archives of these packages and their dependencies; they are not installed."""

_PACKAGES = ("systemd-sysv", "dbus", "python3", "dnf", "iproute2", "kmod", "procps")
_DOWNLOAD = "apt-get install --download-only --yes --quiet --option APT::Install-Recommends=true"
_BUILD_TOOLS = ("setuptools>=77",)
_SECONDS = 1800


def root_archive(suite: str) -> Path:
    """Return the path of a root's archive."""
    return cache_directory() / f"root-{suite}-{digest(suite, *_packages(suite), *RECOMMENDED)}.tar"


def build_tools() -> Path:
    """Return the directory of the wheels that pip needs to build a wheel."""
    return cache_directory() / f"wheels-build-{digest(*_BUILD_TOOLS)}"


def ensure_roots() -> None:
    """Build the missing archives."""
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
    # Debian's apt is essential, Ubuntu's is not.
    return (*_PACKAGES, "apt") if suite in UBUNTU else _PACKAGES


def _archive_options(suite: str) -> list[str]:
    """Return options for Ubuntu's archive; mmdebstrap knows the URLs of all suites."""
    if suite not in UBUNTU:
        return []
    # Docker and the plugins are in universe.
    return [f"--keyring={ubuntu_keyring(ensure_unpacked(UBUNTU_KEYS))}", "--components=main,universe"]


def ensure_build_tools() -> None:
    """Fetch the wheels that pip needs to build a wheel, unless they exist."""
    if not build_tools().exists():
        partial = build_tools().with_suffix(".new")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--only-binary=:all:", "--dest", partial, *_BUILD_TOOLS], timeout=_SECONDS)
        partial.rename(build_tools())


def digest(*words: str) -> str:
    """Return a name in the cache, derived from the contents."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


if __name__ == "__main__":
    ensure_installed(["mmdebstrap", "rpm"])
    fetch_bundle(list(MACHINES.values()))
    ensure_build_tools()
    ensure_base()
    ensure_roots()
