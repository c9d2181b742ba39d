"""`make release`: everything that is published, with checksums, from a clean checkout of the version it says."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from release.build import KINDS, build_into
from release.bundle import Machine
from release.errors import BuildError
from release.source import CHECKOUT, changelog_names, is_clean, version_of

SUMS = "SHA256SUMS"


def publish(into: Path, machines: Sequence[Machine], *, announce: Callable[[str], None]) -> Path:
    """Build everything into the directory `into`, and list the checksums. Raise BuildError where it is no release."""
    version = version_of(CHECKOUT)
    if not is_clean():
        raise BuildError("the checkout has changes that are not committed: a release is what a commit says")
    if not changelog_names(version):
        raise BuildError(f'CHANGELOG.md has no heading "## {version} (YYYY-MM-DD)": date it, and commit')
    made = build_into(into, KINDS, machines, announce=announce)
    sums = into / SUMS
    sums.write_text(checksums(made))
    announce(f"{len(made)} files, sums in {sums}")
    return sums


def checksums(files: Sequence[Path]) -> str:
    """Return what `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))
