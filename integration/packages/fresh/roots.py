"""What fresh machines are made of, and what the packages for them need, while there is a network."""

import hashlib
import tempfile
from pathlib import Path

from integration.node.commands import run, step
from integration.node.packages import cache_directory, ensure_installed
from release.bundle import MACHINES, fetch_bundle

SUITES = ("bookworm", "trixie")
"""Debian 12 and 13."""

_PACKAGES = (
    *("systemd-sysv", "dbus", "docker.io", "containernetworking-plugins", "python3"),
    *("iptables", "iproute2", "kmod", "procps"),
)
_SECONDS = 1800


def root_archive(suite: str) -> Path:
    """Return where the archive of a root is."""
    recipe = hashlib.sha256(" ".join([suite, *_PACKAGES]).encode()).hexdigest()[:12]
    return cache_directory() / f"root-{suite}-{recipe}.tar"


def ensure_roots() -> None:
    """Make the archives that are missing."""
    for suite in SUITES:
        archive = root_archive(suite)
        if archive.exists():
            continue
        with step(f"making a root of {suite}"), tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            made = Path(scratch, "root.tar")
            include = f"--include={','.join(_PACKAGES)}"
            run(["mmdebstrap", "--quiet", "--variant=minbase", include, suite, made], timeout=_SECONDS)
            made.rename(archive)


if __name__ == "__main__":
    ensure_installed(["mmdebstrap", "rpm"])
    fetch_bundle(list(MACHINES.values()))
    ensure_roots()
