from pathlib import Path

import pytest

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.loopback import check_loopback
from shim.netns.enter import in_netns
from shim.netns.loopback_guard import install_guard
from tests.netns.conftest import directory, pinned, pod, start_pod

__all__ = ["directory", "pinned", "pod", "start_pod"]


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    for link, value in (("all", 0), ("lo", 0), ("cni0", 1)):
        place = tmp_path / "sys/net/ipv4/conf" / link
        place.mkdir(parents=True)
        (place / "route_localnet").write_text(f"{value}\n")
    return tmp_path / "sys"


def found(path: Path, sysctls: Path) -> Finding:
    (finding,) = in_netns(path, lambda: list(check_loopback(Config(), sysctls=sysctls)))
    return finding


def test_without_the_rule_an_interface_that_takes_loopback_packets_is_a_warning(pinned: Path, sysctls: Path) -> None:
    finding = found(pinned, sysctls)

    assert (finding.level, finding.subject, finding.advice) == (
        "warn",
        "loopback",
        "start pydockershim, which drops them",
    )
    assert finding.text.startswith("cni0 takes packets for 127.0.0.0/8 (route_localnet): containers reach")


def test_with_the_rule_it_is_fine(pinned: Path, sysctls: Path) -> None:
    in_netns(pinned, install_guard)

    assert found(pinned, sysctls).level == "ok"


def test_without_such_an_interface_there_is_nothing_to_drop(pinned: Path, sysctls: Path) -> None:
    (sysctls / "net/ipv4/conf/cni0/route_localnet").write_text("0\n")

    assert found(pinned, sysctls).text == "no interface takes packets for 127.0.0.0/8 (route_localnet)"
