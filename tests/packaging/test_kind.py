"""Commands that kind runs in a node reach the right program: Docker for images, all others unchanged.

tests/data/kind-commands.tsv has every command in kind's source; integration/kind runs some of them in a node.
"""

import hashlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from shim.config.model import Config
from shim.install import daemon_json

KIND = Path(__file__).parents[2] / "packaging" / "kind"
FILES = KIND / "files"
WRAPPERS = FILES / "usr/local/sbin"
SOCKET = Config().container_runtime_endpoint

PROGRAMS = ("ctr", "docker", "crictl", "containerd", "kubeadm", "kubectl", "journalctl", "systemctl", "pgrep")
COREUTILS = ("cat", "cp", "mkdir", "tar")
PROGRAM = """\
#!/bin/sh
printf '%s' "${0##*/}" >>"$CALLS"
for word in "$@"; do printf ' %s' "$word" >>"$CALLS"; done
echo >>"$CALLS"
case " $* " in *" image inspect node.test/there:1 "*) exit 0 ;; *" image inspect "*) exit 1 ;; esac
case " $* " in *" load "*) /bin/cat >"$CALLS.stdin" ;; esac
case " $* " in *" images list -q "*) printf 'r.example/a:1\\nimport-1@sha256:ab\\nsha256:cd\\nr.example/b:2\\n' ;; esac
case "$*" in *"images list") cat "$CALLS.list" 2>/dev/null ;; esac
case " $* " in *" export --help "*) echo "$EXPORT_HELP" ;; esac
exit "${FAILS:-0}"
"""


@dataclass(frozen=True, slots=True)
class Node:
    """The programs of a node; each records its calls."""

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
    for name in PROGRAMS:
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)
    return Node(tmp_path, f"{WRAPPERS}:{programs}:/usr/bin:/bin")


CTR = ["ctr", "--namespace=k8s.io"]


TABLE = (Path(__file__).parents[1] / "data" / "kind-commands.tsv").read_text().splitlines()
COMMANDS = [line.split("\t") for line in TABLE[2:]]


@pytest.mark.parametrize(
    ("command", "reaches"), [pytest.param(row[2], row[3], id=f"{row[0]} {row[2][:40]}") for row in COMMANDS]
)
def test_each_command_of_kind_reaches_its_program(node: Node, command: str, reaches: str) -> None:
    for name in COREUTILS:
        (node.home / "usr/local/bin" / name).symlink_to("ctr")
    done = node.run(*shlex.split(command))

    error = reaches.partition("error: ")[2]
    assert (done.returncode, done.stderr.decode()) == ((1, f"{error}\n") if error else (0, ""))
    assert node.calls == ([] if error else reaches.split(" ; "))


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        pytest.param(
            [*CTR, "images", "import", "/kind/images/a.tar"], ["docker load --input /kind/images/a.tar"], id="file"
        ),
        pytest.param(["ctr", "-n", "k8s.io", "i", "import", "-"], ["docker load"], id="short words"),
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
                [*CTR, "containers", "list"],
                ["ctr", "info"],
                ["ctr"],
                ["ctr", "images", "import", "-"],
                ["ctr", "--namespace=default", "images", "tag", "--force", "a", "b"],
                ["ctr", "--address", "/run/images/import", "version"],
            )
        ),
    ],
)
def test_other_commands_reach_their_program(node: Node, command: list[str], calls: list[str]) -> None:
    done = node.run(*command)

    assert (done.returncode, done.stderr) == (0, b"")
    assert node.calls == calls


def test_an_archive_on_standard_input_reaches_docker_unchanged(node: Node) -> None:
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
def test_an_unsupported_command_fails_with_a_line(node: Node, arguments: list[str], error: str) -> None:
    done = node.run(*CTR, *arguments)

    assert (done.returncode, done.stderr.decode()) == (1, f"ctr: {error}\n")
    assert [call for call in node.calls if "inspect" not in call] == []


@pytest.mark.parametrize("arguments", [["images", "import", "-"], ["images", "tag", "--force", "a", "b"], ["version"]])
def test_the_exit_status_of_a_failed_program_is_returned(node: Node, arguments: list[str]) -> None:
    assert node.run(*CTR, *arguments, FAILS="7").returncode == 7


def test_the_error_names_a_missing_real_program(node: Node) -> None:
    (node.home / "usr/local/bin/ctr").unlink()
    used = node.home / "bin"
    used.mkdir()
    for name in ("sh", "dirname", "readlink"):
        (used / name).symlink_to(shutil.which(name) or "")
    # The PATH excludes this machine's programs, because Debian's docker.io has a ctr.
    alone = Node(node.home, f"{WRAPPERS}:{node.home / 'usr/local/bin'}:{used}")
    done = alone.run("ctr", "version")

    assert (done.returncode, done.stderr) == (1, b"ctr: there is no other ctr on the PATH\n")


def test_the_namespace_can_come_from_the_environment(node: Node) -> None:
    node.run("ctr", "images", "import", "-", CONTAINERD_NAMESPACE="k8s.io")

    assert node.calls == ["docker load"]


@pytest.mark.parametrize(
    ("options", "local"),
    [("--local  Run export locally rather than through transfer API", "--local "), ("--platform value", "")],
    ids=["containerd 2", "containerd 1"],
)
def test_the_images_of_the_node_are_loaded_once(node: Node, options: str, local: str) -> None:
    """They are not exported with containerd 2's transfer service, which can lose the end of an archive."""
    for directory in ("var/tmp", "kind/images"):
        (node.home / directory).mkdir(parents=True)
    (node.home / "kind/images/a.tar").touch()
    done = node.run("load-node-images", str(node.home), EXPORT_HELP=options)

    assert (done.returncode, done.stderr) == (0, b"archive-node-images: KeyError('r.example/a:1')\n")
    scratch = re.escape(f"{node.home}/var/tmp/node-images.") + r"\w+"
    expected = (
        "ctr --namespace=k8s\\.io images list -q",
        "ctr --namespace=k8s\\.io images list",
        "ctr images export --help",
        rf"ctr --namespace=k8s\.io images export {local}{scratch}/images\.tar r\.example/a:1 r\.example/b:2",
        rf"docker load --quiet --input {scratch}/images\.tar",
        rf"docker load --quiet --input {re.escape(str(node.home))}/kind/images/a\.tar",
    )
    assert len(node.calls) == len(expected)
    for call, pattern in zip(node.calls, expected, strict=True):
        assert re.fullmatch(pattern, call), (call, pattern)
    assert (node.home / "var/lib/kind-images/loaded").exists()
    assert list((node.home / "var/tmp").iterdir()) == []


BLOBS = "var/lib/containerd/io.containerd.content.v1.content/blobs/sha256"
MACHINE = {"os": "linux", "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "other")}


def stored(node: Node, content: object) -> str:
    """Write content to containerd's store, and return its digest."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    name = hashlib.sha256(raw).hexdigest()
    (node.home / BLOBS).mkdir(parents=True, exist_ok=True)
    (node.home / BLOBS / name).write_bytes(raw)
    return f"sha256:{name}"


def test_the_images_of_the_node_are_read_from_containerds_files(node: Node) -> None:
    """An image for a single platform, and a multi-platform image with a single stored platform; they share a layer."""
    shared, configs = stored(node, b"layer of both"), [stored(node, {"of": name}) for name in "ab"]
    one, other = ({"config": {"digest": each}, "layers": [{"digest": shared}]} for each in configs)
    absent = {"digest": "sha256:00", "platform": {"os": "linux", "architecture": "absent"}}
    index = {"manifests": [absent, {"digest": stored(node, other), "platform": MACHINE}]}
    rows = [f"r.example/a:1 type {stored(node, one)} 1 MiB", f"r.example/b:2 type {stored(node, index)} 1 MiB"]
    (node.home / "calls.list").write_text("\n".join(["REF TYPE DIGEST SIZE", *rows, ""]))
    (node.home / "var/tmp").mkdir(parents=True)
    (node.home / "usr/local/bin/docker").write_text('#!/bin/sh\ncp "$4" "$CALLS.tar"\n')
    done = node.run("load-node-images", str(node.home))

    assert (done.returncode, done.stderr) == (0, b"")
    with tarfile.open(node.home / "calls.tar") as archive:
        assert len(archive.getnames()) == 4
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        for image, name, config in zip(json.load(manifest), ("a:1", "b:2"), configs, strict=True):
            assert image["RepoTags"] == [f"r.example/{name}"]
            assert image["Config"] == f"blobs/{config.replace(':', '/')}"
            layer = archive.extractfile(image["Layers"][0])
            assert layer is not None
            assert layer.read() == b"layer of both"
    assert (node.home / "var/lib/kind-images/loaded").exists()
    assert not any("export" in call for call in node.calls)


@pytest.mark.parametrize("listed", [True, False], ids=["not exported", "no answer of containerd"])
def test_a_failed_load_of_images_is_repeated(node: Node, listed: bool) -> None:
    (node.home / "var/tmp").mkdir(parents=True)
    if not listed:
        (node.home / "usr/local/bin/ctr").write_text("#!/bin/sh\nexit 7\n")
    done = node.run("load-node-images", str(node.home), EXPORT_HELP="", FAILS="7")

    assert done.returncode != 0
    assert not (node.home / "var/lib/kind-images/loaded").exists()


def test_ctr_is_the_only_replaced_program_of_the_node() -> None:
    assert {path.name for path in WRAPPERS.iterdir()} == {"archive-node-images", "ctr", "load-node-images"}
    assert all(path.stat().st_mode & 0o111 for path in WRAPPERS.iterdir())


def test_docker_does_not_change_the_network_of_pods() -> None:
    daemon = json.loads((FILES / "etc/docker/daemon.json").read_text())

    assert daemon["live-restore"] is True
    assert daemon["exec-opts"] == ["native.cgroupdriver=systemd"]
    assert (daemon["bridge"], daemon["iptables"], daemon["ip-forward"]) == ("none", False, False)


def test_docker_has_the_oci_runtime_that_install_sets() -> None:
    settings = json.loads((FILES / "etc/docker/daemon.json").read_text())

    assert daemon_json.advised(settings, systemd=True, path="daemon.json") == {}


@pytest.mark.parametrize(("file", "nodes"), [("cluster.yaml", 1), ("cluster-three-nodes.yaml", 3)])
def test_the_cluster_configurations_name_the_servers_socket(file: str, nodes: int) -> None:
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
