"""Pod address ranges survive a restart, and a damaged file does not prevent the start."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.checkpoint.pod_cidr import PodCidr
from shim.domain.errors import InvalidArgument, ShimError
from tests.mounts import small_tmpfs


@pytest.mark.parametrize("text", ["ten", "10.0.0.0/33", "10.0.0.0/24;10.1.0.0/24", "fd00::/129"])
def test_invalid_range_is_reported(tmp_path: Path, text: str) -> None:
    reported = PodCidr(tmp_path / "pod-cidr", default="10.0.0.0/24")
    with pytest.raises(InvalidArgument, match=f"pod_cidr '{text}' is not an address range"):
        reported.update(f"10.9.0.0/24,{text}")
    assert reported.ranges == ("10.0.0.0/24",)
    assert list(tmp_path.iterdir()) == []


def test_update_survives_a_restart_and_overrides_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "pod-cidr"
    PodCidr(path, default="10.0.0.0/24").update("10.1.0.0/24,fd00::/64")
    assert PodCidr(path, default="10.0.0.0/24").ranges == ("10.1.0.0/24", "fd00::/64")


def test_setting_applies_until_an_update(tmp_path: Path) -> None:
    assert PodCidr(tmp_path / "pod-cidr", default="10.0.0.0/24").ranges == ("10.0.0.0/24",)


def test_equal_ranges_are_not_rewritten(tmp_path: Path) -> None:
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


def test_unstored_ranges_do_not_apply(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        reported = PodCidr(small.path / "pod-cidr", default="10.0.0.0/24")
        small.make_read_only()
        with pytest.raises(ShimError, match="read-only file system"):
            reported.update("10.1.0.0/24")
        assert reported.ranges == ("10.0.0.0/24",)
