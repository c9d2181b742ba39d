import json
from pathlib import Path

import msgspec
import pytest

from shim.config.model import Config
from shim.doctor import node
from shim.doctor.node import check_credentials, check_network


def add_network(config: Config, file: str, plugin: str = "bridge") -> None:
    config.cni_conf_dir.mkdir(exist_ok=True)
    network = {"cniVersion": "1.0.0", "name": file.partition(".")[0], "plugins": [{"type": plugin}]}
    (config.cni_conf_dir / file).write_text(json.dumps(network))


def add_plugin(directory: Path, name: str = "bridge") -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).touch(mode=0o755)


def test_a_pod_network(config: Config) -> None:
    add_network(config, "10-pods.conflist")
    add_plugin(config.cni_bin_dir[0])

    assert [finding.level for finding in check_network(config)] == ["ok"]


def test_a_configuration_that_is_never_used_is_a_warning(config: Config) -> None:
    for file in ("10-bridge.conflist", "10-calico.conflist", "20-flannel.conflist"):
        add_network(config, file)
    add_plugin(config.cni_bin_dir[0])

    used, unused = check_network(config)

    assert (used.level, unused.level) == ("ok", "warn")
    assert unused.text.startswith("10-calico.conflist, 20-flannel.conflist of ")
    assert unused.advice.endswith(f"rm {config.cni_conf_dir}/10-bridge.conflist")


def test_files_that_are_no_other_network_are_no_warning(config: Config) -> None:
    add_network(config, "10-pods.conflist")
    add_network(config, "99-loopback.conflist", "loopback")
    (config.cni_conf_dir / "99-broken.conflist").write_text("{")
    for plugin in ("bridge", "loopback"):
        add_plugin(config.cni_bin_dir[0], plugin)

    assert [finding.level for finding in check_network(config)] == ["ok"]


@pytest.fixture
def by_default(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Settings that nobody has changed."""
    monkeypatch.setattr(node, "_DEFAULTS", config)
    return config


def test_a_directory_of_networks_that_was_set_by_mistake(config: Config) -> None:
    (finding,) = check_network(config)

    assert finding.level == "FAIL"
    assert "pydockershim config | grep cni_conf_dir" in finding.advice
    assert finding.advice.endswith("systemctl restart pydockershim")


def test_no_pod_network(by_default: Config) -> None:
    config = by_default
    (finding,) = check_network(config)

    assert finding.level == "FAIL"
    assert str(config.cni_conf_dir) in finding.text
    assert "pydockershim install --cni 10-bridge" in finding.advice


def test_a_directory_that_cannot_be_read(config: Config) -> None:
    config.cni_conf_dir.touch()

    (finding,) = check_network(config)

    assert finding.level == "FAIL"
    assert f"chmod 755 {config.cni_conf_dir}" in finding.advice


def test_a_network_whose_file_is_broken(config: Config) -> None:
    config.cni_conf_dir.mkdir()
    (config.cni_conf_dir / "10-pods.conflist").write_text("{")

    (finding,) = check_network(config)

    assert finding.level == "FAIL"
    assert "not JSON" in finding.text
    assert f"python3 -m json.tool {config.cni_conf_dir}/10-pods.conflist" in finding.advice


@pytest.mark.parametrize(("plugin", "advice"), [("bridge", "apt-get install containernetworking-plugins"),
                                                ("calico", "the network add-on brings calico")])  # fmt: skip
def test_a_network_whose_plugin_is_missing(
    config: Config, monkeypatch: pytest.MonkeyPatch, plugin: str, advice: str
) -> None:
    monkeypatch.setattr(node, "_PLUGIN_DIRECTORIES", ())  # this machine may have plugins
    add_network(config, "10-pods.conflist", plugin)

    (finding,) = check_network(config)

    assert finding.level == "FAIL"
    assert plugin in finding.text
    assert finding.advice.startswith(advice)
    assert str(config.cni_bin_dir[0]) in finding.advice


def test_plugins_that_are_in_a_directory_that_is_not_searched(
    by_default: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = by_default
    add_network(config, "10-pods.conflist")
    add_plugin(tmp_path / "libexec")
    monkeypatch.setattr(node, "_PLUGIN_DIRECTORIES", (tmp_path / "libexec",))

    (finding,) = check_network(config)

    assert "mkdir -p /etc/pydockershim/conf.d" in finding.advice
    assert f'cni_bin_dir = ["{config.cni_bin_dir[0]}", "{tmp_path}/libexec"]' in finding.advice
    assert finding.advice.endswith("systemctl restart pydockershim")


def test_plugins_that_a_setting_does_not_find(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_network(config, "10-pods.conflist")
    add_plugin(tmp_path / "libexec")
    monkeypatch.setattr(node, "_PLUGIN_DIRECTORIES", (tmp_path / "libexec",))

    (finding,) = check_network(config)

    # A file of another name might be read before the file of the setting.
    assert finding.advice.startswith(f"they are in {tmp_path}/libexec: add it to cni_bin_dir where it is set")
    assert finding.advice.endswith("systemctl restart pydockershim")


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
    (finding,) = check_network(msgspec.structs.replace(config, network_plugin="none"))

    assert (finding.level, "loopback" in finding.text) == ("ok", True)
