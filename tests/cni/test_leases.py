from pathlib import Path
from typing import Any

import pytest

from shim.cni import leases
from shim.cni.leases import leased
from shim.domain.errors import ShimError


def conflist(data_dir: Path, kind: str = "host-local") -> dict[str, Any]:
    return {"name": "pods", "plugins": [{"type": "bridge", "ipam": {"type": kind, "dataDir": str(data_dir)}}, {}]}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "pods"
    path.mkdir()
    return path


def test_each_reservation_names_its_container_and_interface(tmp_path: Path, network: Path) -> None:
    (network / "10.1.0.2").write_bytes(b"c0ffee\r\neth0")
    (network / "fd00::2").write_bytes(b"c0ffee\r\nnet1")
    (network / "10.1.0.3").write_bytes(b"0ld")
    (network / "last_reserved_ip.0").write_text("10.1.0.3")
    (network / "lock").touch()

    assert leased(conflist(tmp_path)) == {("c0ffee", "eth0"), ("c0ffee", "net1"), ("0ld", "eth0")}


def test_another_kind_of_ipam_has_none(tmp_path: Path, network: Path) -> None:
    (network / "10.1.0.2").write_bytes(b"c0ffee\r\neth0")

    assert leased(conflist(tmp_path, "dhcp")) == set()


def test_a_network_without_reservations_has_none(tmp_path: Path) -> None:
    assert leased(conflist(tmp_path)) == set()


def test_more_than_can_be_read_is_an_error(tmp_path: Path, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_LEASES", 1)
    for name in ("10.1.0.2", "10.1.0.3"):
        (network / name).write_bytes(b"c0ffee\r\neth0")

    with pytest.raises(ShimError, match=f"read {network}: 2 reservations, at most 1 are read"):
        leased(conflist(tmp_path))
