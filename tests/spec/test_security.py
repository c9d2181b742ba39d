from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.spec import security
from shim.spec.security import apparmor_options, selinux_options

Profile = pb.SecurityProfile


def apparmor(profile: Profile | None, deprecated: str = "") -> list[str]:
    return apparmor_options(profile, deprecated=deprecated, field="f.apparmor")


def localhost(name: str) -> Profile:
    return Profile(profile_type=Profile.Localhost, localhost_ref=name)


def test_profiles_that_need_no_loaded_profile() -> None:
    assert apparmor(None) == []
    assert apparmor(None, "runtime/default") == []
    assert apparmor(Profile(profile_type=Profile.RuntimeDefault), "unconfined") == []
    assert apparmor(None, "unconfined") == ["apparmor=unconfined"]
    assert apparmor(Profile(profile_type=Profile.Unconfined), "localhost/x") == ["apparmor=unconfined"]


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles"
    path.write_text("docker-default (enforce)\nmy own (complain)\n")
    monkeypatch.setattr(security, "APPARMOR_PROFILES", path)
    return path


def test_a_loaded_profile_is_passed_by_name(profiles: Path) -> None:
    assert apparmor(localhost("localhost/my own")) == apparmor(None, "localhost/my own") == ["apparmor=my own"]


def test_a_profile_that_is_not_loaded_is_refused(profiles: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"f\.apparmor: AppArmor profile 'none' is not loaded on this node"):
        apparmor(localhost("none"))
    profiles.unlink()
    with pytest.raises(FailedPrecondition, match="'none' is not loaded: AppArmor is off"):
        apparmor(localhost("none"))


def test_selinux_options_become_labels() -> None:
    assert selinux_options(pb.SELinuxOption()) == []
    assert selinux_options(pb.SELinuxOption(type="spc_t", level="s0")) == ["label=type:spc_t", "label=level:s0"]
