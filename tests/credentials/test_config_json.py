"""Credentials files are found in the kubelet's order, and read in its and Docker's formats."""

import base64
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.credentials.config_json import CredentialsFile, home_directory, read_first, search_paths
from shim.credentials.model import Credentials

AUTH = base64.b64encode(b"u:p").decode()


def test_search_paths_are_the_kubelets() -> None:
    found = search_paths(kubelet_root=Path("/k"), working=Path("/w"), home=Path("/h"))
    assert [str(path) for path in found] == [
        "/k/config.json",
        "/w/config.json",
        "/h/.docker/config.json",
        "/.docker/config.json",
        "/k/.dockercfg",
        "/w/.dockercfg",
        "/h/.dockercfg",
        "/.dockercfg",
    ]


def test_search_paths_work_without_a_home() -> None:
    assert len(search_paths(kubelet_root=Path("/k"), working=Path("/w"), home=None)) == 6


def test_home_comes_from_the_environment_or_passwd() -> None:
    assert home_directory({"HOME": "/home/of/one"}) == Path("/home/of/one")
    found = home_directory({})
    assert found is not None
    assert found.is_absolute()


def read(tmp_path: Path, content: object, name: str = "config.json") -> CredentialsFile | None:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_first([file])


@pytest.mark.parametrize(
    ("entry", "credentials"),
    [
        ({"auth": AUTH}, Credentials(username="u", password="p")),
        ({"auth": AUTH, "username": "x", "password": "y"}, Credentials(username="u", password="p")),
        ({"username": "u", "password": "p", "email": "a@b"}, Credentials(username="u", password="p")),
        ({"auth": AUTH, "identitytoken": "t"}, Credentials(username="u", password="p", identity_token="t")),
        ({"registrytoken": "t"}, Credentials(registry_token="t")),
    ],
    ids=["auth", "auth beats user", "user and password", "identity token", "registry token"],
)
@pytest.mark.parametrize("name", ["config.json", ".dockercfg"])
def test_entries_are_read(tmp_path: Path, name: str, entry: object, credentials: Credentials) -> None:
    table = {"https://r.example/v1/": entry}
    found = read(tmp_path, {"auths": table} if name == "config.json" else table, name)
    assert found == CredentialsFile(path=tmp_path / name, entries=(("r.example", credentials),))


def test_stores_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, {"auths": None, "credHelpers": {"https://a.example": "one"}, "credsStore": "all"})
    assert found is not None
    assert (found.stores, found.default_store) == ((("a.example", "one"),), "all")


@pytest.mark.parametrize(
    "content", [{}, {"auths": {}}, {"detachKeys": "ctrl-x"}, {"auths": {"r.example": {}}}], ids=str
)
def test_file_without_credentials_is_empty(tmp_path: Path, content: object) -> None:
    with capture_logs() as logs:
        assert read(tmp_path, content) == CredentialsFile(path=tmp_path / "config.json")
    assert logs == []


def test_malformed_entry_is_logged_and_skipped(tmp_path: Path) -> None:
    bad = {"auth": base64.b64encode(b"s3cret without a colon").decode()}
    with capture_logs() as logs:
        found = read(tmp_path, {"auths": {"bad.example": bad, "worse.example": "s3cret", "r.example": {"auth": AUTH}}})
    assert found is not None
    assert [key for key, _ in found.entries] == ["r.example"]
    assert [line["entry"] for line in logs] == ["bad.example", "worse.example"]
    assert "s3cret" not in str(logs)
    assert bad["auth"] not in str(logs)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"auths": "s3cret"}',
        b'{"credHelpers": {"a": 1}}',
        b"\xff{}",
        b" " * (1 << 21),
        b'{"x":' * 99999,
    ],
    ids=["empty", "cut off", "list", "auths is text", "helper is a number", "not UTF-8", "too large", "nested"],
)
def test_malformed_file_is_logged_and_the_next_is_read(tmp_path: Path, content: bytes) -> None:
    bad, good = tmp_path / "bad" / "config.json", tmp_path / ".dockercfg"
    bad.parent.mkdir()
    bad.write_bytes(content)
    good.write_text(json.dumps({"r.example": {"auth": AUTH}}))
    with capture_logs() as logs:
        found = read_first([tmp_path / "none" / "config.json", good / "config.json", bad, good])
    assert found is not None
    assert found.path == good
    assert [line["file"] for line in logs] == [bad]
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize(("size", "counts"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_file_of_more_than_1_mib_is_skipped(tmp_path: Path, size: int, counts: bool) -> None:
    path = tmp_path / ".dockercfg"
    path.write_text(json.dumps({"r.example": {"auth": AUTH}}).ljust(size))

    assert (read_first([path]) is not None) is counts


def test_unreadable_file_is_logged(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with capture_logs() as logs:
        assert read_first([tmp_path / "config.json"]) is None
    assert [line["event"] for line in logs] == ["cannot read credentials file, trying the next"]


def test_first_valid_file_counts(tmp_path: Path) -> None:
    paths = search_paths(
        kubelet_root=tmp_path / "k", working=tmp_path / "w", home=tmp_path / "h", root=tmp_path / "root"
    )
    written: list[Path] = []
    for path in reversed(paths):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps({"auths": {}}))
        written.append(path)
        found = read_first(paths)
        assert found is not None
        assert found.path == path
    assert len(written) == 8
