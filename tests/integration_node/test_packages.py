from pathlib import Path

import msgspec
import pytest

from integration.node import packages
from integration.node.commands import NodeError
from integration.node.packages import Bundle, Record, ensure_unpacked

BUNDLE = Bundle(name="pair", suites=("nowhere",), packages=("left", "right"))

TARGETS = """\
http://addons.example/linux/debian/ bookworm stable
http://security.example/debian-security/ bookworm-security main
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/debian/ bookworm contrib
http://mirror.example/debian/ bookworm main
http://other.example/debian/ trixie main
"""


def test_the_mirror_is_the_first_that_serves_main_of_a_whole_release() -> None:
    assert packages.mirror_from_targets(TARGETS) == "http://mirror.example/debian/"


@pytest.mark.parametrize(
    "targets", ["", "http://mirror.example/debian/ bookworm-updates main\n"], ids=["none", "updates"]
)
def test_a_machine_without_a_debian_mirror_is_an_error(targets: str) -> None:
    with pytest.raises(NodeError, match="no source with component main"):
        packages.mirror_from_targets(targets)


@pytest.mark.parametrize("keyring", [True, False], ids=["keyring", "trusted keys"])
def test_a_source_is_checked_with_debians_keys(keyring: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.gpg"
    if keyring:
        file.touch()
    monkeypatch.setattr(packages, "_KEYRING", file)
    options = f"[signed-by={file}] " if keyring else ""

    line = packages.source_line("http://mirror.example/debian/", suite="testing")

    assert line == f"deb {options}http://mirror.example/debian/ testing main\n"


def test_the_private_configuration_does_not_use_the_machines_lists() -> None:
    lines = packages.apt_configuration(Path("/cache/apt/testing")).splitlines()

    assert 'Dir::State::lists "/cache/apt/testing/lists";' in lines
    assert 'Dir::Etc::sourceparts "/dev/null";' in lines
    assert all(line.endswith('";') for line in lines)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("docker.io_20.10.24+dfsg1-1_amd64.deb", ("docker.io", "20.10.24+dfsg1-1")),
        ("busybox-static_1%3a1.35.0-4+deb12u1_amd64.deb", ("busybox-static", "1:1.35.0-4+deb12u1")),
    ],
    ids=["plain", "epoch"],
)
def test_an_archive_is_named_after_its_package_and_version(filename: str, expected: tuple[str, str]) -> None:
    assert packages.package_of_archive(filename) == expected


@pytest.mark.parametrize(
    "banner", ["Docker version 28.5.2+dfsg4, build 3ef3c07", "Docker version 100.0"], ids=["28", "100"]
)
def test_a_version_that_is_new_enough_passes(banner: str) -> None:
    packages.check_version(banner, least=(28,))


@pytest.mark.parametrize(
    ("banner", "message"),
    [("Docker version 26.1.5+dfsg1", "version 26.1.5 is older than 28"), ("no such thing", "none in")],
    ids=["older", "no number"],
)
def test_another_version_is_an_error_that_names_it(banner: str, message: str) -> None:
    with pytest.raises(NodeError, match=message):
        packages.check_version(banner, least=(28,))


def test_a_complete_bundle_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDOCKERSHIM_CACHE", str(tmp_path))
    record = Record(suite="testing", versions={"left": "1", "right": "2"})
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/bundle.json").write_bytes(msgspec.json.encode(record))

    unpacked = ensure_unpacked(BUNDLE)

    assert unpacked.record == record
    assert tmp_path / "pair/usr/sbin" in unpacked.path


@pytest.mark.parametrize(
    "record", [b"", b"{", b'{"suite": "testing", "versions": {"left": "1"}}'], ids=["empty", "torn", "less"]
)
def test_any_other_record_is_downloaded_again(record: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(suite: str, **_: object) -> None:
        raise NodeError(f"no {suite} here")

    monkeypatch.setenv("PYDOCKERSHIM_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "_download_of_debian", refuse)
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/bundle.json").write_bytes(record)

    with pytest.raises(NodeError, match="nowhere: no nowhere here"):
        ensure_unpacked(BUNDLE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "pair"]
