import json
import os
from pathlib import Path

import msgspec
import pytest

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.node import check_node


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    (tmp_path / "sysctls/net/ipv4").mkdir(parents=True)
    (tmp_path / "sysctls/net/ipv4/ip_forward").write_text("1\n")
    return tmp_path / "sysctls"


def found(config: Config, sysctls: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_node(config, environ={}, sysctls=sysctls)}


def test_a_good_one(config: Config, sysctls: Path) -> None:
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}
    config.cni_conf_dir.mkdir()
    (config.cni_conf_dir / "10-pods.conflist").write_text(json.dumps(network))
    config.cni_bin_dir[0].mkdir()
    (config.cni_bin_dir[0] / "bridge").touch(mode=0o755)

    findings = found(config, sysctls)
    assert {subject: finding.level for subject, finding in findings.items() if subject != "user"} == {
        "pod network": "ok",
        "forwarding": "ok",
        "credentials": "ok",
    }


def test_whoever_runs_it(config: Config, sysctls: Path) -> None:
    assert found(config, sysctls)["user"].level == ("ok" if os.geteuid() == 0 else "FAIL")


def test_no_pod_network(config: Config, sysctls: Path) -> None:
    finding = found(config, sysctls)["pod network"]

    assert finding.level == "FAIL"
    assert str(config.cni_conf_dir) in finding.text
    assert "cni_conf_examples" in finding.advice


def test_a_kernel_that_does_not_route(config: Config, sysctls: Path) -> None:
    (sysctls / "net/ipv4/ip_forward").write_text("0\n")

    assert found(config, sysctls)["forwarding"].advice.startswith("sysctl -w net.ipv4.ip_forward=1")


def test_a_kernel_without_ipv4(config: Config, tmp_path: Path) -> None:
    finding = found(config, tmp_path)["forwarding"]

    assert finding.level == "warn"
    assert finding.text.endswith("ip_forward: no such file or directory")


def test_credential_providers_that_cannot_work(config: Config, sysctls: Path, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(
        config,
        image_credential_provider_config=str(tmp_path / "absent.yaml"),
        image_credential_provider_bin_dir=str(tmp_path),
    )

    finding = found(wrong, sysctls)["credentials"]
    assert finding.level == "FAIL"
    assert "absent.yaml" in finding.text
