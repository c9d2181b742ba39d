import json
from pathlib import Path

import msgspec
import pytest

from shim.config.model import Config
from shim.doctor.node import check_credentials, check_network


def test_a_pod_network(config: Config) -> None:
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}
    config.cni_conf_dir.mkdir()
    (config.cni_conf_dir / "10-pods.conflist").write_text(json.dumps(network))
    config.cni_bin_dir[0].mkdir()
    (config.cni_bin_dir[0] / "bridge").touch(mode=0o755)

    assert check_network(config).level == "ok"


def test_no_pod_network(config: Config) -> None:
    finding = check_network(config)

    assert finding.level == "FAIL"
    assert str(config.cni_conf_dir) in finding.text
    assert "install --cni 10-bridge" in finding.advice


def test_a_directory_that_cannot_be_read(config: Config) -> None:
    config.cni_conf_dir.touch()

    finding = check_network(config)

    assert (finding.level, finding.advice) == ("FAIL", f"let root read {config.cni_conf_dir}")


@pytest.mark.parametrize(
    ("text", "cause"),
    [("{", "not JSON"), ('{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}', "bridge")],
    ids=["broken file", "missing plugin"],
)
def test_a_network_that_cannot_be_used(config: Config, text: str, cause: str) -> None:
    config.cni_conf_dir.mkdir()
    (config.cni_conf_dir / "10-pods.conflist").write_text(text)

    finding = check_network(config)

    assert finding.level == "FAIL"
    assert cause in finding.text
    assert finding.advice.startswith(f"correct that file of {config.cni_conf_dir}")
    assert str(config.cni_bin_dir[0]) in finding.advice


def test_no_credential_providers(config: Config) -> None:
    assert check_credentials(config, {}).level == "ok"


def test_credential_providers_that_cannot_work(config: Config, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(
        config,
        image_credential_provider_config=str(tmp_path / "absent.yaml"),
        image_credential_provider_bin_dir=str(tmp_path),
    )

    finding = check_credentials(wrong, {})
    assert finding.level == "FAIL"
    assert "absent.yaml" in finding.text


def test_pods_without_a_network_need_no_configuration(config: Config) -> None:
    finding = check_network(msgspec.structs.replace(config, network_plugin="none"))

    assert (finding.level, "loopback" in finding.text) == ("ok", True)
