"""Pod address ranges outlive a restart, and a damaged file does not keep the server from starting."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.checkpoint.pod_cidr import PodCidr
from shim.domain.errors import InvalidArgument, ShimError
from tests.mounts import small_tmpfs


@pytest.mark.parametrize("text", ["ten", "10.0.0.0/33", "10.0.0.0/24;10.1.0.0/24", "fd00::/129"])
def test_what_is_no_range_is_named(tmp_path: Path, text: str) -> None:
    reported = PodCidr(tmp_path / "pod-cidr", default="10.0.0.0/24")
    with pytest.raises(InvalidArgument, match=f"pod_cidr '{text}' is not an address range"):
        reported.update(f"10.9.0.0/24,{text}")
    assert reported.ranges == ("10.0.0.0/24",)
    assert list(tmp_path.iterdir()) == []


def test_an_update_outlives_a_restart_and_wins_over_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "pod-cidr"
    PodCidr(path, default="10.0.0.0/24").update("10.1.0.0/24,fd00::/64")
    assert PodCidr(path, default="10.0.0.0/24").ranges == ("10.1.0.0/24", "fd00::/64")


def test_the_setting_holds_until_then(tmp_path: Path) -> None:
    assert PodCidr(tmp_path / "pod-cidr", default="10.0.0.0/24").ranges == ("10.0.0.0/24",)


def test_the_same_again_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pod-cidr"
    reported = PodCidr(path, default="")
    reported.update("10.1.0.0/24")
    before = path.stat().st_ino
    reported.update(" 10.1.0.3/24 ")
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    "content",
    [b"10.1.0.0/24,1x", b"\xff\xfe", bytes(20), b"10.1.0.0/24" + b",10.1.0.0/24" * 6000],
    ids=["text", "bytes", "zeros", "large"],
)
def test_a_damaged_file_is_logged_and_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pod-cidr"
    path.write_bytes(content)
    with capture_logs() as logs:
        reported = PodCidr(path, default="10.0.0.0/24")
    assert reported.ranges == ("10.0.0.0/24",)
    assert [(line["log_level"], line["file"]) for line in logs] == [("error", str(path))]


def test_what_could_not_be_stored_is_not_in_force(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        reported = PodCidr(small.path / "pod-cidr", default="10.0.0.0/24")
        small.make_read_only()
        with pytest.raises(ShimError, match="read-only file system"):
            reported.update("10.1.0.0/24")
        assert reported.ranges == ("10.0.0.0/24",)
