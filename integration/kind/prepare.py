"""Fetches what needs a network: a root file system of Debian packages, and wheels.

`kindest/node` is unavailable without a registry. Its stand-in has the parts of a node that the image's layer needs:
systemd, containerd, Docker, iptables and Python, all of them Debian packages with their units. Like that image it has
no D-Bus: runc uses systemd's private socket. Newer programs of Docker replace Debian 12's.
"""

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from integration.node.commands import run, step
from integration.node.packages import NEWER, cache_directory, ensure_installed, ensure_unpacked

PACKAGES = (
    *("systemd-sysv", "docker.io", "python3-venv", "kmod", "procps"),
    *("iproute2", "iptables", "nftables", "conntrack", "ethtool", "socat"),
)
TOOLS = ("iptables", "nftables", "conntrack", "kmod", "libc6", "bash", "coreutils")
_SUITE = "bookworm"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
_SECONDS = 900
_CHECKOUT = Path(__file__).parents[2]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The fetched parts."""

    base: Path
    """Archive of the root file system."""
    wheels: Path
    """Directory with the wheels of this checkout and all its dependencies."""


def prepare() -> Prepared:
    """Create the missing parts."""
    return Prepared(base=ensure_base(), wheels=_ensure_wheels())


def ensure_base() -> Path:
    """Return an archive of the root file system."""
    docker = ensure_unpacked(NEWER).root
    recipe = [*PACKAGES, *_LEFT_OUT, _SUITE, str((docker / "bundle.json").read_bytes())]
    base = cache_directory() / f"kind-base-{_digest(*recipe)}.tar"
    if base.exists():
        return base
    ensure_installed(["mmdebstrap"])
    with step("making a root file system of Debian packages"), tempfile.TemporaryDirectory(dir=base.parent) as scratch:
        made = Path(scratch, "base.tar")
        run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
                f'--customize-hook=cp -a "{docker}/usr/." "$1/usr/"',
                *(_SUITE, made),
            ],
            timeout=_SECONDS,
        )
        made.rename(base)
    return base


def ensure_tools() -> Path:
    """Return an archive with the few programs that etcd and kube-proxy need."""
    tools = cache_directory() / f"kind-tools-{_digest(*TOOLS)}.tar"
    if not tools.exists():
        ensure_installed(["mmdebstrap"])
        with step("making a root file system for etcd and kube-proxy"):
            words = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(TOOLS)}"]
            made = tools.with_suffix(".new.tar")
            run([*words, _SUITE, made], timeout=_SECONDS)
            made.rename(tools)
    return tools


def _ensure_wheels() -> Path:
    cached = cache_directory() / f"wheels-{_digest((_CHECKOUT / 'pyproject.toml').read_text(), sys.version)}"
    if not cached.exists():
        with step("fetching wheels"), tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
            made = Path(scratch, "wheels")
            _pip_wheel(made)
            made.rename(cached)
    wheels = _CHECKOUT / "build/kind/all-wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    shutil.copytree(cached, wheels, ignore=shutil.ignore_patterns("pydockershim-*"))
    with step("making the wheel of this checkout"):
        _pip_wheel(wheels, "--no-deps", "--no-build-isolation")
    return wheels


def _pip_wheel(directory: Path, *options: str) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--wheel-dir", directory, *options, _CHECKOUT], timeout=_SECONDS)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
