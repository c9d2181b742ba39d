"""What kind runs in a node reaches the program that it is meant for: Docker for images, all else as it was.

The commands are those of pkg/cluster in kind v0.33; integration/kind runs them in a node.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from shim.config.model import Config

KIND = Path(__file__).parents[2] / "packaging" / "kind"
FILES = KIND / "files"
WRAPPERS = FILES / "usr/local/sbin"
SOCKET = Config().container_runtime_endpoint

PROGRAM = """\
#!/bin/sh
printf '%s' "$(basename "$0")" >>"$CALLS"
for word in "$@"; do printf ' %s' "$word" >>"$CALLS"; done
echo >>"$CALLS"
case " $* " in *" image inspect node.test/there:1 "*) exit 0 ;; *" image inspect "*) exit 1 ;; esac
case " $* " in *" load "*) cat >"$CALLS.stdin" ;; esac
case " $* " in *" images list -q "*) printf 'r.example/a:1\\nimport-1@sha256:ab\\nsha256:cd\\nr.example/b:2\\n' ;; esac
exit "${FAILS:-0}"
"""


@dataclass(frozen=True, slots=True)
class Node:
    """The programs of a node; each writes down how it was called."""

    home: Path
    path: str

    def run(self, *words: str, stdin: bytes = b"", **environ: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            check=False,
            timeout=60,
            env={"PATH": self.path, "CALLS": str(self.home / "calls"), **environ},
        )

    @property
    def calls(self) -> list[str]:
        calls = self.home / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    programs = tmp_path / "usr/local/bin"
    programs.mkdir(parents=True)
    for name in ("ctr", "docker", "crictl", "containerd", "kubeadm", "kubectl", "journalctl"):
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)
    return Node(tmp_path, f"{WRAPPERS}:{programs}:/usr/bin:/bin")


CTR = ["ctr", "--namespace=k8s.io"]


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        pytest.param(
            [*CTR, "images", "import", "--all-platforms", "--digests", "--snapshotter=overlayfs", "-"],
            ["docker load"],
            id="kind load (nodeutils/util.go:86)",
        ),
        pytest.param(
            [*CTR, "images", "import", "--all-platforms", "--digests", "-"], ["docker load"], id="before 0.12"
        ),
        pytest.param(
            [*CTR, "images", "import", "/kind/images/a.tar"], ["docker load --input /kind/images/a.tar"], id="file"
        ),
        pytest.param(["ctr", "-n", "k8s.io", "i", "import", "-"], ["docker load"], id="short words"),
        pytest.param(
            [*CTR, "images", "tag", "--force", "sha256:ab", "docker.io/library/app:2"],
            ["docker tag sha256:ab docker.io/library/app:2"],
            id="kind load, a new name (nodeutils/util.go:171)",
        ),
        pytest.param(
            [*CTR, "images", "tag", "--force", "app:1", "app:2", "app:3"],
            ["docker tag app:1 app:2", "docker tag app:1 app:3"],
            id="several names",
        ),
        pytest.param(
            [*CTR, "images", "tag", "app:1", "app:2"],
            ["docker image inspect app:2", "docker tag app:1 app:2"],
            id="a tag that is free",
        ),
        *(
            pytest.param(command, [" ".join(command)], id=" ".join(command))
            for command in (
                [*CTR, "images", "list", "-q"],
                [*CTR, "containers", "list"],
                ["ctr", "info"],
                ["ctr"],
                ["ctr", "images", "import", "-"],
                ["ctr", "--namespace=default", "images", "tag", "--force", "a", "b"],
                ["ctr", "--address", "/run/images/import", "version"],
                ["containerd", "config", "dump"],
                ["crictl", "inspecti", "app:1"],
                ["crictl", "images"],
                ["kubeadm", "init", "--config=/kind/kubeadm.conf", "--skip-token-print", "--v=6"],
                ["kubeadm", "join", "--config", "/kind/kubeadm.conf"],
                ["kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "apply", "-f", "-"],
                ["journalctl", "--no-pager", "-u", "containerd.service"],
            )
        ),
    ],
)
def test_each_command_reaches_its_program(node: Node, command: list[str], calls: list[str]) -> None:
    done = node.run(*command)

    assert (done.returncode, done.stderr) == (0, b"")
    assert node.calls == calls


def test_an_archive_on_standard_input_comes_to_docker_whole(node: Node) -> None:
    node.run(*CTR, "images", "import", "-", stdin=bytes(range(256)) * 1000)

    assert (node.home / "calls.stdin").read_bytes() == bytes(range(256)) * 1000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["images", "import", "--base-name=a", "-"],
            "images import --base-name=a cannot be done with the images of Docker",
        ),
        (["images", "import", "--digests"], "images import needs an archive, or - for the standard input"),
        (["images", "import", "a.tar", "b.tar"], "images import takes one archive"),
        (["images", "tag", "--force", "a"], "images tag needs an image and a new name"),
        (["images", "tag", "--local", "a", "b"], "images tag --local cannot be done with the images of Docker"),
        (["images", "tag", "a", "node.test/there:1"], "image node.test/there:1 exists: give --force before it"),
    ],
)
def test_what_cannot_be_done_is_one_line(node: Node, arguments: list[str], error: str) -> None:
    done = node.run(*CTR, *arguments)

    assert (done.returncode, done.stderr.decode()) == (1, f"ctr: {error}\n")
    assert [call for call in node.calls if "inspect" not in call] == []


@pytest.mark.parametrize("arguments", [["images", "import", "-"], ["images", "tag", "--force", "a", "b"], ["version"]])
def test_a_failure_is_handed_on(node: Node, arguments: list[str]) -> None:
    assert node.run(*CTR, *arguments, FAILS="7").returncode == 7


def test_without_the_real_program_it_says_so(node: Node) -> None:
    (node.home / "usr/local/bin/ctr").unlink()
    done = node.run("ctr", "version")

    assert (done.returncode, done.stderr) == (1, b"ctr: there is no other ctr on the PATH\n")


def test_the_namespace_can_be_in_the_environment(node: Node) -> None:
    node.run("ctr", "images", "import", "-", CONTAINERD_NAMESPACE="k8s.io")

    assert node.calls == ["docker load"]


def test_nothing_but_ctr_stands_before_a_program_of_the_node() -> None:
    assert {path.name for path in WRAPPERS.iterdir()} == {"ctr", "load-node-images"}
    assert all(path.stat().st_mode & 0o111 for path in WRAPPERS.iterdir())


def test_docker_keeps_out_of_the_network_of_pods() -> None:
    daemon = json.loads((FILES / "etc/docker/daemon.json").read_text())

    assert daemon["live-restore"] is True
    assert daemon["exec-opts"] == ["native.cgroupdriver=systemd"]
    assert (daemon["bridge"], daemon["iptables"], daemon["ip-forward"]) == ("none", False, False)


@pytest.mark.parametrize(("file", "nodes"), [("cluster.yaml", 1), ("cluster-three-nodes.yaml", 3)])
def test_the_clusters_name_the_socket_of_the_server(file: str, nodes: int) -> None:
    cluster = yaml.safe_load((KIND / file).read_text())
    patches = {patch["kind"]: patch for patch in map(yaml.safe_load, cluster["kubeadmConfigPatches"])}

    assert len(cluster["nodes"]) == nodes
    for kind in ("InitConfiguration", "JoinConfiguration"):
        assert patches[kind]["nodeRegistration"]["criSocket"] == SOCKET
    assert yaml.safe_load((FILES / "etc/crictl.yaml").read_text()) == {"runtime-endpoint": SOCKET}


def test_the_boot_does_not_wait_for_images() -> None:
    units = FILES / "etc/systemd/system"
    images = (units / "kind-images.service").read_text()

    assert "DefaultDependencies=no" in images
    assert "multi-user.target" not in images.partition("[Install]")[2]
    assert "systemctl start kind-images.service" in (units / "kubelet.service.d/20-pydockershim.conf").read_text()
