import json
from pathlib import Path

import msgspec
import pytest

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.kubelet import check_driver, check_kubelet
from shim.doctor.kubelet_settings import Kubelet, Setting

HEADER = "Filename\tType\tSize\tUsed\tPriority\n"


@pytest.fixture
def swaps(tmp_path: Path) -> Path:
    path = tmp_path / "swaps"
    path.write_text(HEADER)
    return path


@pytest.fixture
def config(config: Config, tmp_path: Path) -> Config:
    return msgspec.structs.replace(config, root_directory=tmp_path)


def configured(**settings: object) -> Kubelet:
    file = Path("/var/lib/kubelet/config.yaml")
    return Kubelet(config=file, settings={key: Setting(value, file, key) for key, value in settings.items()})


def found(config: Config, kubelet: Kubelet, swaps: Path, environ: dict[str, str] | None = None) -> dict[str, Finding]:
    return {each.subject: each for each in check_kubelet(config, kubelet, environ or {}, swaps=swaps)}


def program(directory: Path, version: str) -> dict[str, str]:
    """Put a kubelet that says its version on the PATH of the environment that is returned."""
    path = directory / "kubelet"
    path.write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
    path.chmod(0o755)
    return {"PATH": str(directory)}


def test_a_file_that_the_kubelet_cannot_read_fails(config: Config, swaps: Path) -> None:
    finding = found(config, Kubelet(problem="/k.yaml is not YAML: tab"), swaps)["kubelet"]

    assert (finding.level, finding.text) == ("FAIL", "/k.yaml is not YAML: tab")


def test_a_driver_in_a_file_that_cannot_be_read_is_not_compared() -> None:
    assert check_driver(Kubelet(config=Path("/k.yaml"), problem="/k.yaml is not YAML: tab"), "systemd", {}) is None


def test_swap_keeps_a_kubelet_from_starting(config: Config, swaps: Path) -> None:
    assert found(config, configured(), swaps)["swap"] == Finding("ok", "swap", "none")
    swaps.write_text(f"{HEADER}/dev/sda2 partition 1048572 0 -2\n/swapfile file 1048572 0 -3\n")

    fails = found(config, configured(), swaps)["swap"]
    assert (fails.level, fails.text[:21]) == ("FAIL", "/dev/sda2, /swapfile:")
    assert fails.advice.startswith("swapoff --all")
    assert found(config, Kubelet(), swaps)["swap"].level == "warn"
    accepted = found(config, configured(failSwapOn=False), swaps)["swap"]
    assert accepted.level == "ok"
    assert accepted.text.endswith("(failSwapOn in /var/lib/kubelet/config.yaml)")


def add_network(config: Config, subnet: str) -> Path:
    config.cni_conf_dir.mkdir(exist_ok=True)
    plugin = {"type": "bridge", "ipam": {"type": "host-local", "subnet": subnet}}
    file = config.cni_conf_dir / "10-pods.conflist"
    file.write_text(json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}))
    config.cni_bin_dir[0].mkdir(exist_ok=True)
    (config.cni_bin_dir[0] / "bridge").touch(mode=0o755)
    return file


def test_a_network_with_addresses_of_another_node_is_a_warning(config: Config, swaps: Path) -> None:
    file = add_network(config, "10.244.0.0/24")
    (config.root_directory / "pod-cidr").write_text("10.244.3.0/24")

    finding = found(config, Kubelet(), swaps)["pod CIDR"]

    assert finding.level == "warn"
    assert "10.244.0.0/24" in finding.text
    assert finding.advice.startswith(f"sed -i 's#10.244.0.0/24#10.244.3.0/24#' {file}")


@pytest.mark.parametrize("subnet", ["10.244.3.0/24", "10.244.3.128/25", "fd00::/64"])
def test_a_network_with_addresses_of_this_node(config: Config, swaps: Path, subnet: str) -> None:
    add_network(config, subnet)

    finding = found(config, configured(podCIDR="10.244.3.0/24"), swaps)["pod CIDR"]

    assert finding.level == "ok"


def test_without_a_range_of_the_node_nothing_is_compared(config: Config, swaps: Path) -> None:
    add_network(config, "10.244.0.0/24")
    (config.root_directory / "pod-cidr").write_text("no range")

    assert "pod CIDR" not in found(config, configured(), swaps)


def test_a_network_that_names_no_range_is_not_compared(config: Config, swaps: Path) -> None:
    """Calico and Cilium keep their ranges in the cluster."""
    file = add_network(config, "10.244.0.0/24")
    file.write_text(json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}))

    assert "pod CIDR" not in found(config, configured(podCIDR="10.244.3.0/24"), swaps)


def test_a_gate_that_only_cri_dockerd_needs_off(config: Config, swaps: Path) -> None:
    kubelet = configured(featureGates={"ExtendWebSocketsToKubelet": False})

    assert "may be on" in found(config, kubelet, swaps)["feature gates"].text


@pytest.mark.parametrize(("version", "fails"), [("v1.23.17", False), ("v1.24.0", True), ("v1.36.2", True)])
def test_a_flag_that_newer_kubelets_refuse(
    config: Config, swaps: Path, tmp_path: Path, version: str, *, fails: bool
) -> None:
    env = tmp_path / "kubeadm-flags.env"
    env.write_text('KUBELET_KUBEADM_ARGS="--network-plugin=cni"')
    kubelet = Kubelet(flags=["network-plugin"], flag_files=[env])

    findings = found(config, kubelet, swaps, program(tmp_path, version))

    assert ("kubelet" in findings) == fails
    if fails:
        assert findings["kubelet"].level == "FAIL"
        assert str(env) in findings["kubelet"].advice


def test_the_file_with_a_refused_flag_is_named_not_a_file_with_a_longer_one(
    config: Config, swaps: Path, tmp_path: Path
) -> None:
    other, env = tmp_path / "20-other.conf", tmp_path / "kubeadm-flags.env"
    other.write_text("--container-runtime-endpoint=unix:///run/pydockershim.sock")
    env.write_text("--container-runtime=remote")
    kubelet = Kubelet(flags=["container-runtime", "container-runtime-endpoint"], flag_files=[other, env])

    assert f" {env} " in found(config, kubelet, swaps, program(tmp_path, "v1.30.0"))["kubelet"].advice


@pytest.mark.parametrize(
    ("kubelet", "version", "level"),
    [
        (configured(cgroupDriver="systemd"), "", "ok"),
        (configured(cgroupDriver="cgroupfs"), "", "warn"),
        (configured(), "v1.30.2", "FAIL"),
        (configured(), "v1.31.0", "ok"),
        (configured(featureGates={"KubeletCgroupDriverFromCRI": True}), "v1.28.3", "ok"),
        (configured(featureGates={"KubeletCgroupDriverFromCRI": False}), "", "FAIL"),
    ],
)
def test_the_cgroup_driver_of_the_kubelet_is_dockers(
    tmp_path: Path, kubelet: Kubelet, version: str, level: str
) -> None:
    environ = program(tmp_path, version) if version else {}

    finding = check_driver(kubelet, "systemd", environ)

    assert finding is not None
    assert finding.level == level
    assert ("cgroupDriver: systemd" in finding.advice) == (level != "ok")


def test_docker_is_changed_where_the_kubelet_has_the_driver_of_systemd() -> None:
    finding = check_driver(configured(cgroupDriver="systemd"), "cgroupfs", {})

    assert finding is not None
    assert "pydockershim install --docker" in finding.advice


def test_without_a_kubelet_any_driver_will_do() -> None:
    assert check_driver(Kubelet(), "cgroupfs", {}) is None
