"""`make release`: everything that is published, from a clean checkout of the version it says.

The packages, notes for readers, checksums, and a signature of the checksums where a key is given. All is built twice,
and a release whose builds differ is an error: nobody could check it against its source.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from release.build import KINDS, build_into
from release.bundle import Machine
from release.errors import BuildError
from release.source import CHECKOUT, is_clean, notes_of, version_of

SUMS = "SHA256SUMS"
NOTES = "NOTES.md"
_PROGRAMS = {"rpmbuild": "rpm", "dpkg-deb": "dpkg"}
"""Programs that a release needs, with their Debian packages."""


def publish(into: Path, machines: Sequence[Machine], *, key: str, announce: Callable[[str], None]) -> Path:
    """Build everything into the directory `into`, and return the path of the checksums.

    `key` is what gpg knows the signing key by; nothing is signed where it is empty. Raise BuildError where it is no
    release: for a checkout with changes, a version without a dated heading in CHANGELOG.md, or two builds that differ.
    """
    version = version_of(CHECKOUT)
    if not is_clean():
        raise BuildError("the checkout has changes that are not committed: a release is what a commit says")
    notes = notes_of(version)
    if not notes:
        raise BuildError(f'CHANGELOG.md has no heading "## {version} (YYYY-MM-DD)": date it, and commit')
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise BuildError(f"{program} is missing: apt-get install {package}")
    made = build_into(into, KINDS, machines, announce=announce)
    (into / NOTES).write_text(notes)
    with tempfile.TemporaryDirectory(prefix="pydockershim-again-") as again:
        announce("once more, to compare")
        _compare(made, build_into(Path(again), KINDS, machines, announce=lambda _: None))
    sums = into / SUMS
    sums.write_text(checksums([*made, into / NOTES]))
    announce(f"{len(made)} files, equal in two builds; sums in {sums}")
    if key:
        announce(f"signed by {key}: {_sign(sums, key)}")
    announce(f"next: git tag --sign v{version} && git push origin v{version}, and publish {into}")
    return sums


def checksums(files: Sequence[Path]) -> str:
    """Return what `sha256sum --check` reads."""
    return "".join(f"{_sum(path)}  {path.name}\n" for path in sorted(files))


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compare(first: Sequence[Path], second: Sequence[Path]) -> None:
    """Raise BuildError where two builds are not the same, byte by byte."""
    sums = [{path.name: _sum(path) for path in files} for files in (first, second)]
    differing = sorted(name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name))
    if differing:
        raise BuildError(f"two builds of the same commit differ in {', '.join(differing)}")


def _sign(sums: Path, key: str) -> Path:
    signature = sums.with_name(f"{sums.name}.asc")
    into = ("--output", str(signature), "--detach-sign", str(sums))
    words = ["gpg", "--batch", "--yes", "--armor", "--local-user", key, *into]
    try:
        finished = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BuildError("gpg is missing: apt-get install gnupg") from None
    if finished.returncode != 0:
        raise BuildError(f"gpg does not sign with {key}: {finished.stderr.strip()}")
    return signature
