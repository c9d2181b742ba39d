"""Findings of `pydockershim doctor` on a node where pods run, without Docker, and with each kind of mistake."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Served
from integration.node.netns import Netns
from shim.api.v1 import api_pb2 as pb


def doctor(
    served: Served, *words: str, netns: Netns | None = None, prefix: Sequence[str] = (), **settings: object
) -> subprocess.CompletedProcess[str]:
    own = served.server.daemon.argv[served.server.daemon.argv.index("serve") + 1 :]
    command = [
        *prefix,
        *(netns.prefix if netns else ()),
        sys.executable,
        "-m",
        "shim",
        "doctor",
        *own,
        *flags(settings),
        *words,
    ]
    environ = {**os.environ, **(netns.environ if netns else {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)


def flags(settings: Mapping[str, object]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def levels(reported: str) -> dict[str, str]:
    """Map the subject of each finding to its level; lines with advice are skipped."""
    return {line[6:].split("  ")[0]: line[:6].strip() for line in reported.splitlines() if line[:6].strip()}


def test_doctor_finds_no_error_on_a_node_where_pods_run(served: Served) -> None:
    before = served.snapshot()
    reported = doctor(served)

    assert (reported.returncode, reported.stderr) == (0, "")
    found = levels(reported.stdout)
    assert {found[subject] for subject in ("user", "docker", "pod network", "pause image", "server")} == {"ok"}
    version = served.cri.runtime.Version(pb.VersionRequest()).runtime_version
    assert f"docker {version} answers at unix://{served.dirs.socket}" in reported.stdout
    assert served.snapshot() == before


def test_doctor_reports_docker_that_does_not_answer(served: Served, tmp_path: Path) -> None:
    reported = doctor(served, docker_endpoint=f"unix://{tmp_path}/absent.sock", cni_conf_dir=tmp_path)

    assert reported.returncode == 1
    found = levels(reported.stdout)
    assert (found["docker"], found["pod network"]) == ("FAIL", "FAIL")
    assert f"{tmp_path}/absent.sock" in reported.stdout


def findings(served: Served, *, prefix: Sequence[str] = (), **settings: object) -> list[dict[str, str]]:
    reported = doctor(served, "--format=json", *flags(settings), prefix=prefix)
    return json.loads(reported.stdout)["findings"]  # type: ignore[no-any-return]


@dataclass
class Node:
    """A node that a test sets up: a directory for its files, and doctor's settings."""

    path: Path
    settings: dict[str, Any]
    socket: Path
    prefix: Sequence[str] = ()

    def kubelet(self, file: str, text: str) -> None:
        (self.path / "kubelet").mkdir(exist_ok=True)
        (self.path / "kubelet" / file).write_text(text)

    def network(self, file: str, text: str = "", *, plugin: str = "bridge", subnet: str = "10.99.0.0/24") -> None:
        (self.path / "net.d").mkdir(exist_ok=True)
        ipam = {"type": "host-local", "subnet": subnet}
        good = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": plugin, "ipam": ipam}]}
        (self.path / "net.d" / file).write_text(text or json.dumps(good))

    def file(self, name: str, text: str) -> Path:
        (self.path / name).write_text(text)
        return self.path / name


CONTAINERD = "unix:///run/containerd/containerd.sock"


def _typo(node: Node) -> None:
    node.settings["config"] = node.file("config.toml", 'log_levle = "debug"\n')


def _docker_away(node: Node) -> None:
    node.settings["docker_endpoint"] = f"unix://{node.path}/docker.sock"


def _swap(node: Node) -> None:
    swaps = node.file("swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1048572 0 -2\n")
    mount = f'mount --bind {swaps} /proc/swaps && exec "$@"'
    node.kubelet("config.yaml", f"containerRuntimeEndpoint: unix://{node.socket}\n")
    node.prefix = ("unshare", "--mount", "--propagation=private", "sh", "-c", mount, "sh")


def _no_network(node: Node) -> None:
    (node.path / "net.d/10-pods.conflist").unlink()


def _second_network(node: Node) -> None:
    node.network("20-calico.conflist")


def _providers(node: Node) -> None:
    node.settings["image_credential_provider_config"] = node.path / "absent.yaml"
    node.settings["image_credential_provider_bin_dir"] = node.path


WRONG: dict[str, tuple[Callable[[Node], None], str, str, str]] = {
    "a setting that does not exist": (_typo, "FAIL", "settings", "correct it"),
    "the kubelet's file names containerd": (
        lambda node: node.kubelet("config.yaml", f"containerRuntimeEndpoint: {CONTAINERD}\n"),
        *("FAIL", "kubelet", "sed -i 's#^containerRuntimeEndpoint:"),
    ),
    "the kubelet's flags name containerd": (
        lambda node: node.kubelet("kubeadm-flags.env", f'X="--container-runtime-endpoint={CONTAINERD}"\n'),
        *("FAIL", "kubelet", "sed -i 's#--container-runtime-endpoint"),
    ),
    "the kubelet's file is not YAML": (
        lambda node: node.kubelet("config.yaml", "a: b: c"),
        *("FAIL", "kubelet", "systemctl restart kubelet"),
    ),
    "another cgroup driver": (
        lambda node: node.kubelet(
            "config.yaml", "cgroupDriver: other\nfeatureGates: {KubeletCgroupDriverFromCRI: false}\n"
        ),
        *("FAIL", "cgroup driver", "systemctl restart kubelet"),
    ),
    "swap": (_swap, "FAIL", "swap", "swapoff --all"),
    "addresses of another node": (
        lambda node: node.kubelet(
            "config.yaml", f"podCIDR: 10.98.0.0/24\ncontainerRuntimeEndpoint: unix://{node.socket}\n"
        ),
        *("warn", "pod CIDR", "sed -i 's#10.99.0.0/24#10.98.0.0/24#'"),
    ),
    "no network": (_no_network, "FAIL", "pod network", "correct cni_conf_dir where it is set"),
    "a network that is not JSON": (
        lambda node: node.network("10-pods.conflist", "{"),
        *("FAIL", "pod network", "python3 -m json.tool"),
    ),
    "a network without its plugin": (
        lambda node: node.network("10-pods.conflist", plugin="macvlan-of-tests"),
        *("FAIL", "pod network", "the network add-on brings macvlan-of-tests"),
    ),
    "a network that is never used": (_second_network, "warn", "pod network", "rm "),
    "no Docker": (_docker_away, "FAIL", "docker", "systemctl start docker"),
    "no configuration of credential providers": (_providers, "FAIL", "credentials", "mend that file"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_doctor_finds_each_mistake_first_and_gives_its_remedy(served: Served, tmp_path: Path, wrong: str) -> None:
    breaks, level, subject, command = WRONG[wrong]
    node = Node(
        tmp_path, {"kubelet_root_dir": tmp_path / "kubelet", "cni_conf_dir": tmp_path / "net.d"}, served.dirs.socket
    )
    node.network("10-pods.conflist")
    good = [(each["subject"], each["level"]) for each in findings(served, **node.settings)]
    assert "FAIL" not in dict(good).values()

    breaks(node)

    found = findings(served, prefix=node.prefix, **node.settings)
    # Docker's own start changes the forward chain meanwhile: other tests stop it.
    good.append(("forward chain", "FAIL"))
    first = next(each for each in found if (each["subject"], each["level"]) not in good and each["level"] != "ok")
    assert (first["level"], first["subject"]) == (level, subject), first
    assert command in first["advice"]
