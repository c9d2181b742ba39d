from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.security import apparmor_options, seccomp_options, selinux_options
from shim.errors import FailedPrecondition, InvalidArgument

Profile = pb.SecurityProfile
RUNTIME_DEFAULT = Profile(profile_type=Profile.RuntimeDefault)
UNCONFINED = Profile(profile_type=Profile.Unconfined)


def seccomp(profile: Profile | None, deprecated: str = "") -> list[str]:
    return seccomp_options(profile, deprecated=deprecated, field="f.seccomp")


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


def test_a_local_seccomp_profile_is_handed_over_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text('{\n "defaultAction": "SCMP_ACT_LOG"\n}')
    profile = Profile(profile_type=Profile.Localhost, localhost_ref=str(path))
    assert seccomp(profile) == ['seccomp={"defaultAction":"SCMP_ACT_LOG"}']
    assert seccomp(None, f"localhost/{path}") == ['seccomp={"defaultAction":"SCMP_ACT_LOG"}']


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FailedPrecondition, "No such file"),
        ("{", InvalidArgument, "is not JSON"),
        ("[]", InvalidArgument, "no defaultAction"),
        ("{}", InvalidArgument, "no defaultAction"),
    ],
    ids=["missing", "broken", "no object", "empty"],
)
def test_an_unusable_seccomp_profile_is_never_left_out(
    content: str | None, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=rf"f\.seccomp: .*{path}.*{message}"):
        seccomp(Profile(profile_type=Profile.Localhost, localhost_ref=str(path)))


def test_a_relative_seccomp_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not absolute"):
        seccomp(Profile(profile_type=Profile.Localhost, localhost_ref="profiles/audit.json"))


def test_an_unknown_deprecated_profile_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'docker-custom'"):
        seccomp(None, "docker-custom")


def test_apparmor() -> None:
    def options(profile: Profile | None, deprecated: str = "") -> list[str]:
        return apparmor_options(profile, deprecated=deprecated, field="f.apparmor")

    assert options(None) == []
    assert options(RUNTIME_DEFAULT, "unconfined") == []
    assert options(None, "unconfined") == ["apparmor=unconfined"]
    with pytest.raises(FailedPrecondition, match="AppArmor profile 'no-such-profile' is not loaded"):
        options(Profile(profile_type=Profile.Localhost, localhost_ref="localhost/no-such-profile"))


def test_selinux() -> None:
    assert selinux_options(pb.SELinuxOption()) == []
    assert selinux_options(pb.SELinuxOption(type="spc_t", level="s0")) == ["label=type:spc_t", "label=level:s0"]
