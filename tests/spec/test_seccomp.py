import json
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.spec.seccomp import localhost_path, seccomp_of_daemon, seccomp_options

Profile = pb.SecurityProfile
RUNTIME_DEFAULT = Profile(profile_type=Profile.RuntimeDefault)
UNCONFINED = Profile(profile_type=Profile.Unconfined)


def seccomp(profile: Profile | None, deprecated: str = "", *, daemon: str = "default") -> list[str]:
    path = localhost_path(profile, deprecated=deprecated, field="f.seccomp")
    content = path.read_bytes() if path is not None and path.exists() else b""
    return seccomp_options(
        profile, deprecated=deprecated, daemon_profile=daemon, localhost_profile=content, field="f.seccomp"
    )


def localhost(path: Path | str) -> Profile:
    return Profile(profile_type=Profile.Localhost, localhost_ref=str(path))


@pytest.mark.parametrize(
    ("profile", "deprecated", "expected"),
    [
        (None, "", ["seccomp=unconfined"]),
        (UNCONFINED, "runtime/default", ["seccomp=unconfined"]),
        (RUNTIME_DEFAULT, "unconfined", []),
        (None, "runtime/default", []),
        (None, "docker/default", []),
        (None, "unconfined", ["seccomp=unconfined"]),
    ],
)
def test_profiles_become_security_options(profile: Profile | None, deprecated: str, expected: list[str]) -> None:
    assert seccomp(profile, deprecated) == expected


def test_the_default_is_the_daemons_profile_unless_it_is_unconfined() -> None:
    assert seccomp(RUNTIME_DEFAULT, daemon="/etc/docker/strict.json") == []
    assert seccomp(RUNTIME_DEFAULT, daemon="unconfined") == ["seccomp=builtin"]
    assert seccomp(RUNTIME_DEFAULT, daemon="builtin") == ["seccomp=builtin"]


@pytest.mark.parametrize("profile", [RUNTIME_DEFAULT, localhost("/none")], ids=["default", "localhost"])
def test_a_daemon_without_seccomp_refuses_containers_that_want_it(profile: Profile) -> None:
    with pytest.raises(FailedPrecondition, match=r"f\.seccomp: Docker has no seccomp"):
        seccomp(profile, daemon="")
    assert seccomp(UNCONFINED, daemon="") == ["seccomp=unconfined"]


@pytest.mark.parametrize(
    ("options", "profile"),
    [
        ([], ""),
        (["name=apparmor", "name=seccomp,profile=default"], "default"),
        (["name=seccomp,profile=/etc/p.json", "name=cgroupns"], "/etc/p.json"),
        (["name=seccomp,profile=unconfined"], "unconfined"),
        (["name=seccomp"], "default"),
    ],
)
def test_the_daemons_profile_is_read_from_its_info(options: list[str], profile: str) -> None:
    assert seccomp_of_daemon(options) == profile


def test_a_localhost_profile_is_passed_completely(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text('{\n "defaultAction": "SCMP_ACT_LOG",\n "archMap": []\n}')
    whole = ['seccomp={"defaultAction":"SCMP_ACT_LOG","archMap":[]}']
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert seccomp(localhost(path)) == seccomp(localhost(link)) == seccomp(None, f"localhost/{path}") == whole


def test_unknown_keys_of_a_profile_are_kept(tmp_path: Path) -> None:
    profile = {"defaultAction": "SCMP_ACT_LOG", "syscalls": None, "somethingNew": {"value": (1 << 64) - 1}}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))

    (option,) = seccomp(localhost(path))

    assert json.loads(option.removeprefix("seccomp=")) == profile


BAD_TEXTS = {
    "empty": (b"", "not valid"),
    "broken": (b"{", "not valid"),
    "deep": (b"[" * 500_000, "not valid"),
    "no text": (b'{"defaultAction": "\xff"}', "not valid"),
    "half a character": (b'{"defaultAction": "SCMP_ACT_LOG", "x": "\\ud800"}', "not valid"),
    "no object": (b"[]", "not valid"),
    "no action": (b"{}", "defaultAction"),
    # Docker would run the container without any filter.
    "empty action": (b'{"defaultAction": ""}', "defaultAction"),
    "null action": (b'{"defaultAction": null}', "defaultAction"),
}


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_an_unusable_profile_is_an_error(kind: str, tmp_path: Path) -> None:
    text, reason = BAD_TEXTS[kind]
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    with pytest.raises(InvalidArgument) as refusal:
        seccomp(localhost(path))
    assert str(refusal.value).startswith(f"f.seccomp: seccomp profile {path}")
    assert reason in str(refusal.value)


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not absolute"):
        seccomp(localhost("profiles/audit.json"))


def test_an_unknown_deprecated_profile_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'docker-custom'"):
        seccomp(None, "docker-custom")
