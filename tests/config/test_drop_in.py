"""Command lines that other projects use for cri-dockerd are accepted unchanged.

The lines are facts of those projects: the arguments after the program's name, with the defaults of their templates.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shim import cli
from shim.config import cri_dockerd_flags, load
from shim.config.fields import fields


class Line(NamedTuple):
    """Arguments, the settings they make that differ from the defaults, and the number of warnings."""

    arguments: str
    settings: dict[str, Any]
    warned: tuple[str, ...] = ()


OPT = (Path("/opt/cni/bin"),)
LINES = {
    # packaging/systemd/cri-docker.service of cri-dockerd 0.4
    "cri-dockerd": Line("--container-runtime-endpoint fd://", {"container_runtime_endpoint": "fd://"}),
    # pkg/minikube/cruntime/docker.go of minikube 1.38, 10-cni.conf
    "minikube": Line(
        "--container-runtime-endpoint fd:// --pod-infra-container-image=registry.k8s.io/pause:3.10.1 "
        "--network-plugin=cni --hairpin-mode=hairpin-veth",
        {"container_runtime_endpoint": "fd://", "pod_infra_container_image": "registry.k8s.io/pause:3.10.1"},
    ),
    # the same of minikube 1.30, which named the directories
    "minikube 1.30": Line(
        "--container-runtime-endpoint fd:// --pod-infra-container-image=registry.k8s.io/pause:3.9 "
        "--network-plugin=cni --cni-bin-dir=/opt/cni/bin --cni-cache-dir=/var/lib/cni/cache "
        "--cni-conf-dir=/etc/cni/net.d --hairpin-mode=hairpin-veth",
        {
            "container_runtime_endpoint": "fd://",
            "pod_infra_container_image": "registry.k8s.io/pause:3.9",
            "cni_bin_dir": OPT,
        },
    ),
    # roles/container-engine/cri-dockerd/templates/cri-dockerd.service.j2 of kubespray, with two stacks
    "kubespray": Line(
        "--container-runtime-endpoint unix:///var/run/cri-dockerd.sock --cni-conf-dir=/etc/cni/net.d "
        "--cni-bin-dir=/opt/cni/bin --network-plugin=cni --pod-cidr=10.233.64.0/18,fd85:ee78:d8a6:8607::1:0000/112 "
        "--ipv6-dual-stack=True",
        {
            "container_runtime_endpoint": "unix:///var/run/cri-dockerd.sock",
            "cni_bin_dir": OPT,
            "pod_cidr": "10.233.64.0/18,fd85:ee78:d8a6:8607::1:0/112",
        },
    ),
    # pkg/agent/cridockerd/cridockerd.go of k3s 1.33, which has it built in
    "k3s --docker": Line(
        "--cni-bin-dir=/var/lib/rancher/k3s/data/cni --cni-conf-dir=/var/lib/rancher/k3s/agent/etc/cni/net.d "
        "--container-runtime-endpoint=unix:///run/k3s/cri-dockerd/cri-dockerd.sock "
        "--cri-dockerd-root-directory=/var/lib/rancher/k3s/agent/cri-dockerd "
        "--docker-endpoint=unix:///var/run/docker.sock --ipv6-dual-stack=true --log-level=trace --network-plugin=cni "
        "--pod-infra-container-image=rancher/mirrored-pause:3.6 --runtime-cgroups=/k3s "
        "--streaming-bind-addr=127.0.0.1:10010",
        {
            "cni_bin_dir": (Path("/var/lib/rancher/k3s/data/cni"),),
            "cni_conf_dir": Path("/var/lib/rancher/k3s/agent/etc/cni/net.d"),
            "container_runtime_endpoint": "unix:///run/k3s/cri-dockerd/cri-dockerd.sock",
            "root_directory": Path("/var/lib/rancher/k3s/agent/cri-dockerd"),
            "log_level": "debug",
            "pod_infra_container_image": "rancher/mirrored-pause:3.6",
            "streaming_bind_addr": "127.0.0.1:10010",
        },
        ("--runtime-cgroups",),
    ),
    # assets/scripts/service-cri-dockerd.initd of Rancher Desktop 1.x
    "Rancher Desktop": Line(
        "--container-runtime-endpoint unix:///run/cri-dockerd.sock --network-plugin=cni --cni-bin-dir=/usr/libexec/cni "
        "--cni-conf-dir=/etc/cni/net.d --cni-cache-dir=/var/lib/cni/cache",
        {"cni_bin_dir": (Path("/usr/libexec/cni"),)},
    ),
    # .github of cri-dockerd and hack/local-up-cluster.sh of Kubernetes: pods on Docker's own bridge
    "local-up-cluster": Line("--network-plugin= --log-level=debug", {"network_plugin": "none", "log_level": "debug"}),
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "DEFAULT_FILE", tmp_path / "absent.toml")
    for field in fields().values():
        monkeypatch.delenv(field.variable, raising=False)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_known_command_line_sets_the_expected_values(line: Line) -> None:
    given: argparse.Namespace = cli.parser().parse_args(["serve", *line.arguments.split()])
    texts = vars(given)

    loaded = load.load(
        flags={name: texts[name] for name in fields() if texts.get(name) is not None}, environ={}, file=None
    )
    warned = cri_dockerd_flags.warnings(
        {each.flag: texts[each.flag] for each in cri_dockerd_flags.IGNORED if texts[each.flag] is not None}
    )

    differing = {name for name, field in fields().items() if getattr(loaded.config, name) != field.default}
    assert {name: getattr(loaded.config, name) for name in differing} == line.settings
    assert [words.split()[1] for words in warned] == list(line.warned)


@pytest.mark.parametrize("flag", ["--network-plugin=kubenet", "--docker-endpoint=tcp://127.0.0.1:2375"])
def test_invalid_value_is_refused_by_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--container-runtime-endpoint=fd://", flag]) == cli.EXIT_USAGE

    assert f"flag {flag.partition('=')[0]}: " in capsys.readouterr().err
