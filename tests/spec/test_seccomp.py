import json
from pathlib import Path
from typing import Any

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


DOCKERS_DIALECT = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 1,
    "archMap": [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_LOONGARCH64", "subArchitectures": None},
        {"architecture": "SCMP_ARCH_RISCV64"},
    ],
    "flags": ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"],
    "syscalls": [
        {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "", "includes": {}},
        {
            "names": ["ptrace"],
            "action": "SCMP_ACT_ALLOW",
            "args": None,
            "includes": {"minKernel": "4.8"},
            "excludes": {"arches": ["arm64"], "caps": ["CAP_SYS_ADMIN"]},
        },
        {
            "name": "clone",
            "names": [],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 5, "value": 2114060288, "valueTwo": (1 << 64) - 1, "op": "SCMP_CMP_MASKED_EQ"}],
            "comment": "s390 parameter ordering for clone is different",
            "excludes": {"minKernel": ""},
        },
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": [{"op": "SCMP_CMP_EQ"}]},
    ],
    "listenerPath": "",
    "somethingNew": {"more": [1]},
}


@pytest.mark.parametrize(
    "profile",
    [
        DOCKERS_DIALECT,
        {"defaultAction": "SCMP_ACT_LOG", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_SHEB"], "archMap": []},
        {"defaultAction": "SCMP_ACT_LOG", "architectures": None, "syscalls": None, "flags": None},
    ],
    ids=["Docker's", "the OCI's", "nulls"],
)
def test_every_key_that_docker_knows_is_accepted(tmp_path: Path, profile: dict[str, Any]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))

    (option,) = seccomp(localhost(path))

    assert json.loads(option.removeprefix("seccomp=")) == profile


CALL = {"names": ["x"], "action": "SCMP_ACT_ALLOW"}
ARGUMENT = {"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}
BAD_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown architecture": ({"architectures": ["BOGUS"]}, "$.architectures[0]"),
    "unknown architecture of a family": ({"archMap": [{"architecture": "BOGUS"}]}, "$.archMap[0].architecture"),
    "unknown lesser architecture": (
        {"archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["x86"]}]},
        "$.archMap[0].subArchitectures[0]",
    ),
    "both kinds of architectures": (
        {"architectures": ["SCMP_ARCH_X86"], "archMap": [{"architecture": "SCMP_ARCH_X86_64"}]},
        "architectures and archMap exclude each other",
    ),
    "unknown flag": ({"flags": ["LOG"]}, "$.flags[0]"),
    "negative error by default": ({"defaultErrnoRet": -1}, "$.defaultErrnoRet"),
    "negative error": ({"syscalls": [CALL | {"errnoRet": -1}]}, "$.syscalls[0].errnoRet"),
    "name and names": ({"syscalls": [CALL | {"name": "y"}]}, "name and names exclude each other - at `$.syscalls[0]`"),
    "arguments of no form": ({"syscalls": [CALL | {"args": "x"}]}, "$.syscalls[0].args"),
    "unknown operator": ({"syscalls": [CALL | {"args": [ARGUMENT | {"op": "=="}]}]}, "$.syscalls[0].args[0].op"),
    "no operator": ({"syscalls": [CALL | {"args": [{"index": 0}]}]}, "`op` - at `$.syscalls[0].args[0]`"),
    "seventh argument": ({"syscalls": [CALL | {"args": [ARGUMENT | {"index": 6}]}]}, "$.syscalls[0].args[0].index"),
    "negative value": ({"syscalls": [CALL | {"args": [ARGUMENT | {"value": -1}]}]}, "$.syscalls[0].args[0].value"),
    "second value too long": ({"syscalls": [CALL | {"args": [ARGUMENT | {"valueTwo": 1 << 64}]}]}, "have 64 bits"),
    "kernel of no form": ({"syscalls": [CALL | {"includes": {"minKernel": "4.8.1"}}]}, "$.syscalls[0].includes"),
    "capabilities of no form": ({"syscalls": [CALL | {"excludes": {"caps": "ALL"}}]}, "$.syscalls[0].excludes.caps"),
}


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_a_profile_that_would_fail_at_the_start_is_refused(kind: str, tmp_path: Path) -> None:
    keys, reason = BAD_KEYS[kind]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_LOG"} | keys))
    with pytest.raises(InvalidArgument) as refusal:
        seccomp(localhost(path))
    assert str(refusal.value).startswith(f"f.seccomp: seccomp profile {path} is not valid: ")
    assert reason in str(refusal.value)


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
