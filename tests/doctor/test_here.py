import os
from pathlib import Path

import pytest

from shim.doctor.findings import Finding
from shim.doctor.here import check_here


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    (tmp_path / "sysctls/net/ipv4").mkdir(parents=True)
    (tmp_path / "sysctls/net/ipv4/ip_forward").write_text("1\n")
    return tmp_path / "sysctls"


def found(sysctls: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_here(sysctls=sysctls)}


def test_a_good_one(sysctls: Path) -> None:
    assert found(sysctls)["forwarding"].level == "ok"


def test_only_root_may_run_it(sysctls: Path) -> None:
    assert found(sysctls)["user"].level == ("ok" if os.geteuid() == 0 else "FAIL")


def test_a_kernel_that_does_not_route(sysctls: Path) -> None:
    (sysctls / "net/ipv4/ip_forward").write_text("0\n")

    assert found(sysctls)["forwarding"].advice.startswith("sysctl -w net.ipv4.ip_forward=1")


def test_a_kernel_without_ipv4(tmp_path: Path) -> None:
    finding = found(tmp_path)["forwarding"]

    assert finding.level == "warn"
    assert finding.text.endswith("ip_forward: no such file or directory")
