import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.seccomp import MAX_PROFILE, seccomp_of_daemon, seccomp_options
from shim.errors import FailedPrecondition, InvalidArgument

Profile = pb.SecurityProfile
RUNTIME_DEFAULT = Profile(profile_type=Profile.RuntimeDefault)
UNCONFINED = Profile(profile_type=Profile.Unconfined)


def seccomp(profile: Profile | None, deprecated: str = "", *, daemon: str = "default") -> list[str]:
    return seccomp_options(profile, deprecated=deprecated, daemon_profile=daemon, field="f.seccomp")


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
def test_seccomp(profile: Profile | None, deprecated: str, expected: list[str]) -> None:
    assert seccomp(profile, deprecated) == expected


def test_the_default_is_the_daemons_unless_that_is_none() -> None:
    assert seccomp(RUNTIME_DEFAULT, daemon="/etc/docker/strict.json") == []
    assert seccomp(RUNTIME_DEFAULT, daemon="unconfined") == ["seccomp=builtin"]
    assert seccomp(RUNTIME_DEFAULT, daemon="builtin") == ["seccomp=builtin"]


@pytest.mark.parametrize("profile", [RUNTIME_DEFAULT, localhost("/none")], ids=["default", "localhost"])
def test_a_daemon_without_seccomp_runs_nobody_who_wants_it(profile: Profile) -> None:
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
def test_what_the_daemon_tells_of_itself(options: list[str], profile: str) -> None:
    assert seccomp_of_daemon(options) == profile


def test_a_profile_of_the_node_is_handed_over_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text('{\n "defaultAction": "SCMP_ACT_LOG",\n "archMap": []\n}')
    whole = ['seccomp={"defaultAction":"SCMP_ACT_LOG","archMap":[]}']
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert seccomp(localhost(path)) == seccomp(localhost(link)) == seccomp(None, f"localhost/{path}") == whole


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
    "unknown action": (b'{"defaultAction": "DENY"}', "defaultAction"),
    "rules of no form": (b'{"defaultAction": "SCMP_ACT_LOG", "syscalls": {}}', "syscalls"),
    "rule without action": (b'{"defaultAction": "SCMP_ACT_LOG", "syscalls": [{"names": ["x"]}]}', "syscalls[0]"),
    "too long": (b" " * (MAX_PROFILE + 1), "more than 1048576 bytes"),
}


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_an_unusable_profile_is_never_left_out(kind: str, tmp_path: Path) -> None:
    text, reason = BAD_TEXTS[kind]
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    with pytest.raises((FailedPrecondition, InvalidArgument)) as refusal:
        seccomp(localhost(path))
    assert str(refusal.value).startswith(f"f.seccomp: seccomp profile {path}")
    assert reason in str(refusal.value)


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "No such file"),
    "FIFO": (os.mkfifo, "not a regular file"),
    "directory": (lambda path: path.mkdir(), "not a regular file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic link"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.timeout(10)
def test_what_is_no_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    make, reason = NO_FILES[kind]
    path = tmp_path / "profile.json"
    make(path)
    with pytest.raises(FailedPrecondition, match=rf"f\.seccomp: seccomp profile {path}: .*{reason}"):
        seccomp(localhost(path))


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not absolute"):
        seccomp(localhost("profiles/audit.json"))


def test_an_unknown_deprecated_profile_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'docker-custom'"):
        seccomp(None, "docker-custom")
