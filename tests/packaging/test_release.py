"""The parts of a release: notes, checksums, reproducible builds and a signature."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from release import publish
from release.errors import BuildError
from release.source import notes_of, version_of

ROOT = Path(__file__).parents[2]


def test_the_version_of_this_checkout_has_notes() -> None:
    version = version_of(ROOT)

    notes = notes_of(version)

    assert notes.startswith(f"## {version} (2")
    assert notes.count("\n## ") == 0


def test_notes_end_where_the_next_version_begins(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(
        "# Changelog\n\n## 0.2.0 (2027-01-02)\n\n- new\n\n## 0.1.0 (2026-11-23)\n\n- old\n\n## 0.0.1\n"
    )

    assert notes_of("0.2.0", changelog=changelog) == "## 0.2.0 (2027-01-02)\n\n- new\n\n"
    assert notes_of("0.0.1", changelog=changelog) == ""  # a version without a date is not released


def test_builds_that_differ_are_an_error(tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"2")):
        for build, more in (("first", b""), ("second", b"!" if name == "b" else b"")):
            (tmp_path / build).mkdir(exist_ok=True)
            (tmp_path / build / name).write_bytes(content + more)
    first, second = ([tmp_path / build / name for name in "ab"] for build in ("first", "second"))

    publish._compare(first, first)
    with pytest.raises(BuildError, match=r"differ in b$"):
        publish._compare(first, second)


def test_sha256sum_reads_the_checksums(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    sums = tmp_path / publish.SUMS
    sums.write_text(publish.checksums([tmp_path / "file"]))

    subprocess.run(["sha256sum", "--check", "--strict", sums.name], cwd=tmp_path, check=True, capture_output=True)


needs_gpg = pytest.mark.skipif(shutil.which("gpg") is None, reason="no gpg on this machine")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a key of gpg without a passphrase, in a separate home."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    name = "Release <release@example.org>"
    words = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never"]
    subprocess.run(words, check=True, capture_output=True)
    yield "release@example.org"
    subprocess.run(["gpgconf", "--kill", "all"], check=False, env={**os.environ, "GNUPGHOME": str(home)})


@needs_gpg
def test_the_checksums_are_signed(tmp_path: Path, key: str) -> None:
    sums = tmp_path / publish.SUMS
    sums.write_text("sums")

    signature = publish._sign(sums, key)

    subprocess.run(["gpg", "--verify", signature, sums], check=True, capture_output=True)


@needs_gpg
def test_a_missing_key_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    tmp_path.chmod(0o700)
    sums = tmp_path / publish.SUMS
    sums.write_text("sums")

    with pytest.raises(BuildError, match="gpg does not sign with nobody"):
        publish._sign(sums, "nobody")
