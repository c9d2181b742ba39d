"""The keyring: files before providers, specific entries before general ones, and no early queries."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import yaml

from shim.config.model import Config
from shim.credentials.keyring import KEPT_SECONDS, Keyring, keyring_of_node
from shim.credentials.model import Credentials, Found
from shim.credentials.provider import Provider
from shim.credentials.provider_config import ProviderSettings
from shim.domain import references
from shim.domain.errors import DeadlineExceeded, InvalidArgument
from shim.hostfs.client import HostFs
from tests.credentials.programs import Programs, response

T = TypeVar("T")

APP = "r.example/team/app:1"


def entry(user: str) -> dict[str, str]:
    return {"username": user, "password": "p"}


def login(user: str) -> Credentials:
    return Credentials(username=user, password="p")


def write(path: Path, **content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def provider(programs: Programs, name: str, auth: dict[str, tuple[str, str]]) -> Provider:
    binary = programs.write_printing(name, response(auth))
    settings = ProviderSettings(
        name=name,
        binary=binary,
        match_images=("*.example",),
        api_version="credentialprovider.kubelet.k8s.io/v1",
        default_cache_seconds=60,
    )
    return Provider(settings)


def found(
    keyring: Keyring, image: str = APP, *, find: Callable[[references.Reference], Iterator[Found]] | None = None
) -> list[tuple[str, str]]:
    return [(it.source, it.credentials.username) for it in (find or keyring.find)(references.parse(image))]


def test_empty_keyring_finds_nothing() -> None:
    assert found(Keyring()) == []


def test_all_matches_are_found_in_order(tmp_path: Path, programs: Programs) -> None:
    programs.write_printing("docker-credential-special", {"Username": "special", "Secret": "p"})
    programs.write_printing("docker-credential-general", {"Username": "general", "Secret": "p"})
    file = write(
        tmp_path / "config.json",
        auths={
            "*.example": entry("star"),
            "r.example": entry("host"),
            "r.example/team": entry("team"),
            "x.example": {},
        },
        credHelpers={"r.example": "special", "x.example": "none"},
        credsStore="general",
    )
    providers = [
        provider(programs, "first", {"r.example": ("f-host", "p"), "x.example": ("f-other", "p")}),
        provider(programs, "second", {"r.example": ("s-host", "p"), "r.example/team": ("s-team", "p")}),
    ]
    assert found(Keyring(paths=[file], providers=providers)) == [
        ("docker-credential-special for r.example", "special"),
        (f"{file} for r.example/team", "team"),
        (f"{file} for r.example", "host"),
        (f"{file} for *.example", "star"),
        ("docker-credential-general for r.example", "general"),
        ("credential provider second for r.example/team", "s-team"),
        ("credential provider first for r.example", "f-host"),
        ("credential provider second for r.example", "s-host"),
    ]


def test_programs_run_only_when_needed(tmp_path: Path, programs: Programs) -> None:
    programs.write_printing("docker-credential-general", {"Username": "general", "Secret": "p"})
    file = write(tmp_path / "config.json", auths={"r.example": entry("u")}, credsStore="general")
    keyring = Keyring(paths=[file], providers=[provider(programs, "one", {"r.example": ("x", "p")})])
    search = keyring.find(references.parse(APP))
    assert next(search).credentials == login("u")
    assert programs.asked == []
    assert next(search).credentials == login("general")
    assert programs.asked == ["get|r.example"]
    assert next(search).credentials == login("x")
    assert len(programs.asked) == 2


def test_duplicates_are_omitted(tmp_path: Path, programs: Programs) -> None:
    file = write(tmp_path / "config.json", auths={"r.example": entry("u"), "r.example/team": entry("u")})
    keyring = Keyring(paths=[file], providers=[provider(programs, "one", {"r.example": ("u", "p")})])
    assert found(keyring) == [(f"{file} for r.example/team", "u")]


def test_a_provider_that_fails_does_not_hide_the_next(programs: Programs) -> None:
    bad = provider(programs, "bad", {})
    programs.write("bad", "exit 1")
    assert found(Keyring(providers=[bad, provider(programs, "good", {"r.example": ("u", "p")})])) == [
        ("credential provider good for r.example", "u")
    ]


def test_a_response_for_other_registries_is_not_used(programs: Programs) -> None:
    assert found(Keyring(providers=[provider(programs, "one", {"evil.example": ("u", "p")})])) == []


@pytest.mark.parametrize("image", ["busybox", "docker.io/library/busybox:1", "index.docker.io/library/busybox"])
def test_docker_hub_is_asked_by_its_url(tmp_path: Path, image: str) -> None:
    file = write(tmp_path / "config.json", auths={"https://index.docker.io/v1/": entry("u")})
    assert found(Keyring(paths=[file]), image) == [(f"{file} for index.docker.io", "u")]


def test_file_is_cached_for_five_minutes(tmp_path: Path) -> None:
    now = [0.0]
    file = write(tmp_path / "config.json", auths={"r.example": entry("first")})
    keyring = Keyring(paths=[file], clock=lambda: now[0])
    assert found(keyring) == [(f"{file} for r.example", "first")]
    write(file, auths={"r.example": entry("second")})
    now[0] += KEPT_SECONDS - 1
    assert found(keyring) == [(f"{file} for r.example", "first")]
    now[0] += 1
    assert found(keyring) == [(f"{file} for r.example", "second")]


def test_missing_file_is_cached_for_five_minutes(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "config.json"
    keyring = Keyring(paths=[file], clock=lambda: now[0])
    assert found(keyring) == []
    write(file, auths={"r.example": entry("first")})
    now[0] += KEPT_SECONDS - 1
    assert found(keyring) == []
    now[0] += 1
    assert found(keyring) == [(f"{file} for r.example", "first")]


def test_refused_pull_finds_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    keyring = Keyring(paths=[file])
    began = keyring.now()
    late = partial(keyring.find_late, since=began)
    assert found(keyring) == []
    assert found(keyring, find=late) == []
    write(file, auths={"r.example": entry("first")})
    assert found(keyring, find=late) == [(f"{file} for r.example", "first")]
    assert found(keyring, find=late) == [(f"{file} for r.example", "first")], "another pull has found it"
    assert found(keyring, find=partial(keyring.find_late, since=keyring.now())) == [], "tried before"


# --- from the settings ------------------------------------------------------------------------------------


@pytest.fixture
def kubelet_root(tmp_path: Path) -> Path:
    made = tmp_path / "kubelet"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    "order",
    [
        ["kubelet/config.json", "work/config.json", "home/.docker/config.json", "kubelet/.dockercfg"],
        ["work/config.json", "home/.docker/config.json", "kubelet/.dockercfg", "work/.dockercfg", "home/.dockercfg"],
        ["home/.docker/config.json", "kubelet/.dockercfg", "work/.dockercfg", "home/.dockercfg"],
        ["kubelet/.dockercfg", "work/.dockercfg", "home/.dockercfg"],
        ["work/.dockercfg", "home/.dockercfg"],
        ["home/.dockercfg"],
    ],
    ids=lambda order: order[0],
)
def test_keyring_of_the_node_uses_the_kubelets_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Sequence[str]
) -> None:
    for name in order:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = {"r.example": entry(name)}
        path.write_text(json.dumps({"auths": table} if path.name == "config.json" else table))
    (tmp_path / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    config = Config(kubelet_root_dir=tmp_path / "kubelet")
    keyring = keyring_of_node(config, environ={"HOME": str(tmp_path / "home")})
    assert [user for _, user in found(keyring)] == [order[0]]


def test_keyring_of_the_node_uses_the_configured_providers(
    tmp_path: Path, kubelet_root: Path, programs: Programs
) -> None:
    programs.write_printing("one", response({"r.example": ("u", "p")}, version="v1beta1"))
    file = tmp_path / "providers.yaml"
    settings = {
        "name": "one",
        "matchImages": ["r.example"],
        "defaultCacheDuration": "0s",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1",
    }
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "CredentialProviderConfig"}
    file.write_text(yaml.safe_dump({**kind, "providers": [settings]}))
    config = Config(
        kubelet_root_dir=kubelet_root,
        image_credential_provider_config=str(file),
        image_credential_provider_bin_dir=str(programs.bin_dir),
    )
    keyring = keyring_of_node(config, environ={"HOME": str(tmp_path)})
    assert found(keyring) == [("credential provider one for r.example", "u")]


@pytest.mark.parametrize("given", ["image_credential_provider_config", "image_credential_provider_bin_dir"])
def test_incomplete_provider_settings_are_refused(kubelet_root: Path, given: str) -> None:
    config = msgspec.structs.replace(Config(kubelet_root_dir=kubelet_root), **{given: "/x"})
    with pytest.raises(InvalidArgument, match="must be set together"):
        keyring_of_node(config, environ={})


def test_file_on_a_hanging_volume_is_skipped(
    tmp_path: Path, kubelet_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example in a home directory on a dead NFS server; this process must not block in the kernel."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    home = tmp_path / "home/.docker"
    home.mkdir(parents=True)
    (home / "config.json").write_text(json.dumps({"auths": {"r.example": entry("home")}}))
    (tmp_path / "work/.dockercfg").write_text(json.dumps({"r.example": entry("work")}))
    asked = []

    def call(function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        asked.append(path)
        if str(home) in path:  # also of all files at once
            raise DeadlineExceeded(f"{what}: {path} has not answered for 10 s; is the volume behind it alive?")
        return function(*arguments)

    keyring = keyring_of_node(
        Config(kubelet_root_dir=kubelet_root), environ={"HOME": str(tmp_path / "home")}, call=call
    )

    assert [user for _, user in found(keyring)] == ["work"]
    assert str(home / "config.json") in asked
    assert str(tmp_path / "work/config.json") in asked, "not one by one"


def test_missing_files_cost_a_single_call(tmp_path: Path, kubelet_root: Path) -> None:
    """Pulling a present image takes 10 ms; each call of the helper process took 0.5 ms of them."""
    asked = []

    def call(function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        asked.append(path)
        return function(*arguments)

    environ = {"HOME": str(tmp_path / "home")}
    keyring = keyring_of_node(Config(kubelet_root_dir=kubelet_root), environ=environ, call=call)
    assert found(keyring) == []
    assert found(keyring) == []
    assert len(asked) == 1


def test_a_large_file_is_read_in_parts_by_the_helper_process(tmp_path: Path, kubelet_root: Path) -> None:
    kubelet_root.mkdir(exist_ok=True)
    many = {f"r{number}.example": entry("x" * 400) for number in range(500)}
    (kubelet_root / "config.json").write_text(json.dumps({"auths": {**many, "r.example": entry("me")}}))
    host_fs = HostFs()
    try:
        config = Config(kubelet_root_dir=kubelet_root)
        keyring = keyring_of_node(config, environ={"HOME": str(tmp_path)}, call=host_fs.call)
        assert [user for _, user in found(keyring)] == ["me"]
    finally:
        host_fs.stop()


@pytest.mark.parametrize("dead", ["providers.yaml", "bin"])
def test_providers_on_a_hanging_volume_are_an_error(tmp_path: Path, dead: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "providers.yaml").write_text("never read")

    def call(function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        if path == str(tmp_path / dead):
            raise DeadlineExceeded(f"{what}: {path} has not answered for 10 s; is the volume behind it alive?")
        return function(*arguments)

    config = Config(
        image_credential_provider_config=str(tmp_path / "providers.yaml"),
        image_credential_provider_bin_dir=str(tmp_path / "bin"),
    )
    with pytest.raises(DeadlineExceeded, match=f"{tmp_path / dead} has not answered"):
        keyring_of_node(config, environ={}, call=call)
