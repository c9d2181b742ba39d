from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from shim.cni.leases import FILE_LIMIT, MAX_LEASES, leased
from shim.domain.errors import ShimError


def conflist(data_dir: Path, kind: str = "host-local") -> dict[str, Any]:
    return {"name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": kind, "dataDir": str(data_dir)}}, {}]}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "pods"
    path.mkdir()
    return path


def test_reservations_give_container_and_interface(tmp_path: Path, network: Path) -> None:
    (network / "10.1.0.2").write_bytes(b"c0ffee\r\neth0")
    (network / "fd00::2").write_bytes(b"c0ffee\r\nnet1")
    (network / "10.1.0.3").write_bytes(b"0ld")
    (network / "last_reserved_ip.0").write_text("10.1.0.3")
    (network / "lock").touch()

    assert leased(conflist(tmp_path)) == {("c0ffee", "eth0"), ("c0ffee", "net1"), ("0ld", "eth0")}


def test_another_ipam_plugin_has_no_reservations(tmp_path: Path, network: Path) -> None:
    (network / "10.1.0.2").write_bytes(b"c0ffee\r\neth0")

    assert leased(conflist(tmp_path, "dhcp")) == set()


def test_a_missing_directory_has_no_reservations(tmp_path: Path) -> None:
    assert leased(conflist(tmp_path)) == set()


def test_more_reservations_than_the_limit_are_an_error(tmp_path: Path, network: Path) -> None:
    for number in range(MAX_LEASES + 1):
        (network / f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}").touch()

    with pytest.raises(ShimError, match=f"read {network}: 65537 reservations, at most 65536 are read"):
        leased(conflist(tmp_path))


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_a_reservation_that_is_too_long_is_an_error(tmp_path: Path, network: Path, *, more: int, is_read: bool) -> None:
    (network / "10.1.0.2").write_bytes(b"c0ffee\r\neth0".ljust(FILE_LIMIT + more))

    with nullcontext() if is_read else pytest.raises(ShimError, match="more than 4096 bytes"):
        assert leased(conflist(tmp_path)) == {("c0ffee", "eth0")}
