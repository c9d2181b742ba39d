"""A Debian root file system for aarch64, whose programs run on this machine through QEMU.

The kernel starts the emulator by a binfmt_misc table in a separate user namespace, so that the machine's table stays
unchanged. Linux supports tables in namespaces from 6.7 on.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.node.commands import run, step
from integration.node.packages import Bundle, cache_directory, ensure_installed, ensure_unpacked
from integration.packages.fresh.roots import digest
from release.bundle import MACHINES, platform_flags

MACHINE = MACHINES["aarch64"]
PYTHON = "3.11"
"""Debian 12's."""

_SUITE = "bookworm"
_EMULATOR = Bundle(name="qemu-user-static", suites=(_SUITE,), packages=("qemu-user-static",))
_DEPENDENCIES = ("libc6", "libstdc++6", "python3")
"""Dependencies of our package.

The root has no other library, so a library that the package forgets to name is missing.
"""
_OF_DPKG = ("base-files", "coreutils", "dash", "diffutils", "dpkg", "findutils", "grep", "libc-bin", "sed")
_OF_TESTS = ("base-passwd", "mount")
_TEST_TOOLS = ("hypothesis>=6.100", "pytest>=8.3", "pytest-timeout>=2.3")
_SECONDS = 900
_RECORD = """\
for archive in "$1"/var/cache/apt/archives/*.deb; do
    dpkg-deb --field "$archive" | sed '/^Package:/a Status: install ok installed'
    echo
done >"$1/var/lib/dpkg/status"
cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"
cp "$1/usr/share/base-passwd/group.master" "$1/etc/group"
mkdir -p "$1/dev" "$1/proc" "$1/run" "$1/srv"
"""
"""Writes dpkg's status and the files of packages' scripts: this takes seconds, real installations many minutes."""
_PACKAGES = (*_DEPENDENCIES, *_OF_DPKG, *_OF_TESTS)
_ARCHIVE = f"root-aarch64-{digest(*_PACKAGES, _RECORD)}.tar"
_WHEELS = f"wheels-aarch64-{digest(*_TEST_TOOLS)}"

_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "slave")
_TABLE = Path("/proc/sys/fs/binfmt_misc")
_MAGIC = rb"\x7fELF\x02\x01\x01" + rb"\x00" * 9 + rb"\x02\x00\xb7\x00"
_MASK = rb"\xff" * 7 + rb"\x00" + rb"\xff" * 8 + rb"\xfe\xff\xff\xff"
"""Magic and mask of the header of programs for aarch64; the byte for the OS ABI may have any value."""
_INSIDE = """\
mount -t binfmt_misc binfmt_misc {table}
cat {entry} >{table}/register
mount --rbind /proc {root}/proc
mount --rbind /dev {root}/dev
exec chroot {root} "$@"
"""
_ENVIRON = {
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


def ensure_prepared() -> None:
    """Fetch and build everything that is missing."""
    ensure_unpacked(_EMULATOR)
    _ensure_root()
    _ensure_wheels()


def why_not() -> str:
    """Return why this machine cannot use such a root, empty if it can."""
    if os.uname().machine == MACHINE.name:
        return "this machine is an aarch64 itself"
    words = [*_UNSHARE, "mount", "-t", "binfmt_misc", "binfmt_misc", str(_TABLE)]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"the kernel has no binfmt_misc table in namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True, slots=True)
class Emulated:
    """A root file system, unpacked into a directory."""

    path: Path

    def command(self, *words: str) -> list[str]:
        """Return the command of this machine that runs a program of the root."""
        script = _INSIDE.format(table=_TABLE, entry=self._entry(), root=self.path)
        return [*_UNSHARE, "sh", "-ec", script, "sh", *words]

    def tried(self, *words: str, seconds: float = _SECONDS, environ: Sequence[tuple[str, str]] = ()) -> tuple[int, str]:
        """Run a program in the root and return its exit status and output."""
        done = subprocess.run(
            self.command(*words),
            env={**_ENVIRON, **dict(environ)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )
        return done.returncode, done.stdout

    def run(self, *words: str) -> str:
        """Run a program that must succeed, and return its output."""
        code, output = self.tried(*words)
        assert code == 0, f"{' '.join(words)}: exit status {code}\n{output}"
        return output

    def _entry(self) -> Path:
        emulator = os.fsencode(ensure_unpacked(_EMULATOR).root / "usr/bin/qemu-aarch64-static")
        entry = self.path.with_name("entry")
        # F: the emulator is opened now, so that it need not be in the root.
        entry.write_bytes(b":aarch64:M::" + b":".join((_MAGIC, _MASK, emulator)) + b":F")
        return entry


def unpacked_root(directory: Path) -> Emulated:
    """Unpack a fresh root, with the tools that run unit tests in `/srv/tools`."""
    root = directory / "root"
    root.mkdir()
    run(["tar", "--extract", "--file", cache_directory() / _ARCHIVE, "--directory", root], timeout=_SECONDS)
    for wheel in (cache_directory() / _WHEELS).iterdir():
        run([sys.executable, "-m", "zipfile", "-e", wheel, root / "srv/tools"], timeout=_SECONDS)
    return Emulated(root)


def _ensure_root() -> None:
    archive = cache_directory() / _ARCHIVE
    if archive.exists():
        return
    with step("making a root for aarch64"), tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made, record = Path(scratch, "root.tar"), Path(scratch, "record")
        record.write_text(_RECORD)
        words = ["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={MACHINE.deb}", "--skip=check/qemu"]
        hooks = ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f'--extract-hook=sh -e {record} "$1"']
        include = f"--include={','.join(_PACKAGES)}"
        run([*words, *hooks, include, _SUITE, made], timeout=_SECONDS)
        made.rename(archive)


def _ensure_wheels() -> None:
    complete = cache_directory() / _WHEELS
    if not complete.exists():
        partial = complete.with_suffix(".new")
        pip: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run([*pip, *platform_flags(MACHINE, PYTHON), "--dest", partial, *_TEST_TOOLS], timeout=_SECONDS)
        partial.rename(complete)


if __name__ == "__main__":
    ensure_installed(["mmdebstrap"])
    ensure_prepared()
