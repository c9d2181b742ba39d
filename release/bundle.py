"""The libraries that packages bundle: the wheels of `packaging/bundle.txt`, for each CPython of a machine type."""

import hashlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from release.commands import run_tool
from release.errors import BuildError
from release.source import CHECKOUT, supported_pythons

LOCK = CHECKOUT / "packaging" / "bundle.txt"

GLIBC = "2.28"
"""The oldest that the bundled wheels run with."""
LIBSTDCXX = "8"
"""The oldest release of GCC whose C++ library the bundled wheels run with: that of a system with such a glibc."""
_TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type, by its names."""

    name: str
    """As the kernel and wheels say."""
    deb: str


MACHINES = {machine.name: machine for machine in (Machine("x86_64", "amd64"), Machine("aarch64", "arm64"))}
"""Those that every library has wheels for; grpcio or msgspec has none for armv7, ppc64le, riscv64 and s390x."""


def this_machine() -> Machine:
    """Return the type of this machine. Raise BuildError where libraries have no wheels for it."""
    name = os.uname().machine
    if name not in MACHINES:
        raise BuildError(f"there are no wheels of all libraries for {name}, only for {' and '.join(MACHINES)}")
    return MACHINES[name]


def wheels_directory() -> Path:
    """Return where wheels are kept between builds: a directory for each content of the lock."""
    cache = Path(os.environ.get("PYDOCKERSHIM_CACHE", "/var/cache/pydockershim"))
    return cache / "wheels" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]


def fetch_bundle(machines: Sequence[Machine]) -> Path:
    """Return a directory with a directory of wheels for each CPython and machine; fetch those that are missing."""
    directory = wheels_directory()
    wanted = [(machine, python) for machine in machines for python in supported_pythons(CHECKOUT)]
    missing = [pair for pair in wanted if not wheels_for(directory, *pair).is_dir()]
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda pair: _fetch(directory, *pair), missing))
    return directory


def wheels_for(directory: Path, machine: Machine, python: str) -> Path:
    """Return the directory of the wheels for a CPython on a machine."""
    return directory / f"{machine.name}-{python}"


def platform_flags(machine: Machine, python: str) -> list[str]:
    """Return the flags by which pip takes wheels for another CPython or machine than its own."""
    platforms = [word for tag in _TAGS for word in ("--platform", f"{tag}_{machine.name}")]
    return ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]


def _fetch(directory: Path, machine: Machine, python: str) -> None:
    complete = wheels_for(directory, machine, python)
    partial = complete.with_name(f".{complete.name}.{os.getpid()}")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    words: list[str | Path] = [
        *pip,
        "download",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        LOCK,
        "--dest",
        partial,
    ]
    run_tool([*words, *platform_flags(machine, python)], environ=os.environ)
    partial.replace(complete)
