"""The output and effects of `docker` on containers in user namespaces: the table of docs/oci-runtime.md."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.by_hand.hands import DockerCli
from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, unused_name
from integration.pods.user_namespaces import FIRST, IMAGE_USER, SIZE, kubelet_of, pod_of, started
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

NOBODY = 65534


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    with kubelet_of(served, images.busybox) as made:
        yield made


@pytest.fixture
def docker(served: Served, tmp_path: Path) -> DockerCli:
    return DockerCli(served.engine, home=tmp_path / "docker")


@pytest.fixture
def app(kubelet: Kubelet) -> str:
    """A container of a pod in a user namespace, with a file owned by another user."""
    container = started(kubelet, pod_of(kubelet))
    kubelet.inside(container, f"echo mine > /root/mine; chown {IMAGE_USER} /root/mine")
    return container


def is_in_its_namespace(kubelet: Kubelet, app: str) -> bool:
    shown = kubelet.inside(app, "cat /proc/self/uid_map; stat -c %u /root/mine")
    return shown.split() == ["0", str(FIRST), str(SIZE), str(IMAGE_USER)]


def wait_state(kubelet: Kubelet, app: str, state: "pb.ContainerState") -> None:
    wait_until(lambda: kubelet.cri.container_status(app).state == state)


def owners(served: Served, app: str, path: str) -> dict[str, int]:
    """Return the owners of files in the archive of `docker cp CONTAINER:PATH -`, by name."""
    stream, _ = served.engine.api.get_archive(app, path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        return {member.name: member.uid for member in archive}


def test_inspect_names_the_runtime(docker: DockerCli, app: str) -> None:
    found = json.loads(docker("inspect", app))[0]

    assert found["HostConfig"]["Runtime"] == "pydockershim"
    assert found["HostConfig"]["UsernsMode"] == "host"


def test_exec_runs_in_the_namespace_of_the_container(docker: DockerCli, app: str) -> None:
    assert docker("exec", app, "cat", "/proc/self/uid_map").split() == ["0", str(FIRST), str(SIZE)]
    assert docker("exec", "--user", str(IMAGE_USER), app, "id", "-u") == str(IMAGE_USER)
    assert docker("exec", app, "sh", "-c", "echo opened > /dev/stdout") == "opened"
    assert docker("exec", "--privileged", app, "cat", "/proc/self/uid_map").split()[1] == str(FIRST)


def test_top_shows_ids_of_the_node(docker: DockerCli, app: str) -> None:
    assert docker("top", app, "-o", "pid,user:12,comm").splitlines()[1].split()[1:] == [str(FIRST), "sleep"]


def test_stats_count_the_processes(docker: DockerCli, app: str) -> None:
    assert docker("stats", "--no-stream", "--format", "{{.PIDs}}", app) == "1"


def test_update_changes_limits(docker: DockerCli, kubelet: Kubelet, app: str) -> None:
    docker("update", "--memory", "64m", "--memory-swap", "64m", app)

    limits = kubelet.cri.container_status
    wait_until(lambda: limits(app).resources.linux.memory_limit_in_bytes == 64 << 20)
    assert is_in_its_namespace(kubelet, app)


def test_a_paused_container_continues(docker: DockerCli, kubelet: Kubelet, app: str) -> None:
    docker("pause", app)
    docker("unpause", app)

    assert is_in_its_namespace(kubelet, app)


@pytest.mark.parametrize("commands", [("restart --time 0",), ("kill", "start"), ("stop --time 0", "start")])
def test_a_restarted_container_is_in_its_namespace(
    docker: DockerCli, kubelet: Kubelet, app: str, commands: tuple[str, ...]
) -> None:
    for command in commands:
        docker(*command.split(), app)

    wait_state(kubelet, app, pb.CONTAINER_RUNNING)
    assert is_in_its_namespace(kubelet, app)


def test_copies_of_a_running_container_have_ids_of_the_node(served: Served, app: str) -> None:
    assert owners(served, app, "/root") == {"root": FIRST, "root/mine": FIRST + IMAGE_USER}


def test_copies_of_a_stopped_container_have_ids_of_the_container(served: Served, docker: DockerCli, app: str) -> None:
    docker("kill", app)

    assert owners(served, app, "/root") == {"root": 0, "root/mine": IMAGE_USER}


def test_files_copied_into_a_running_container_belong_to_nobody(
    docker: DockerCli, kubelet: Kubelet, app: str, tmp_path: Path
) -> None:
    (tmp_path / "new").write_text("new\n")

    docker("cp", str(tmp_path / "new"), f"{app}:/root/new")

    assert kubelet.inside(app, "stat -c %u /root/new; cat /root/new").split() == [str(NOBODY), "new"]


def test_files_copied_into_a_stopped_container_belong_to_root(
    docker: DockerCli, kubelet: Kubelet, app: str, tmp_path: Path
) -> None:
    (tmp_path / "new").write_text("new\n")
    docker("kill", app)

    docker("cp", str(tmp_path / "new"), f"{app}:/root/new")
    docker("start", app)

    wait_state(kubelet, app, pb.CONTAINER_RUNNING)
    assert kubelet.inside(app, "stat -c %u /root/new; cat /root/new").split() == ["0", "new"]


def test_a_committed_image_keeps_the_owners(docker: DockerCli, app: str) -> None:
    image = unused_name("committed")
    docker("commit", app, image)
    try:
        options = ("--rm", "--network", "none", "--entrypoint", "stat")
        shown = docker("run", *options, image, "-c", "%u", "/root/mine", "/etc/passwd")
        assert shown.split() == [str(IMAGE_USER), "0"]
    finally:
        docker("rmi", image)


def test_diff_of_a_running_container_lists_shifted_ids_as_changes(docker: DockerCli, app: str) -> None:
    assert {"A /root/mine", "C /etc/passwd"} <= {*docker("diff", app).splitlines()}


def test_diff_of_a_stopped_container_lists_only_changes(docker: DockerCli, app: str) -> None:
    docker("kill", app)

    changed = docker("diff", app).splitlines()

    assert "A /root/mine" in changed
    assert not [line for line in changed if line.endswith((" /etc/passwd", " /bin/busybox"))]
