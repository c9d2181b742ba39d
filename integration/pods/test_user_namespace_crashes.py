"""Pods in user namespaces after crashes on the node: files keep their owners, and no mount is left.

No container starts with less isolation than requested.
"""

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import docker
import pytest

import shim.oci_runtime
from integration.conftest import Images, NodeDirs, Served, make_engine, serving
from integration.networks import bridge, conflist
from integration.node import images as node_images
from integration.node.containerd import shims, tasks
from integration.node.disk import Disk
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node
from integration.node.mounts import unmount_all
from integration.node.processes import command
from integration.pods import faulty_runtime
from integration.pods.kubelet import Kubelet, Pod, pid_of, refusal
from integration.pods.user_namespaces import (
    FIRST,
    IMAGE_USER,
    SIZE,
    created,
    kubelet_of,
    mounts_of_host,
    orders_of,
    pod_of,
    started,
    volume,
)
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.root import ORDERS
from shim.oci_runtime.create import PLACE

LINK = "pods-reboot"
_PROGRAM = Path(faulty_runtime.__file__)


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    mounts = mounts_of_host()
    with kubelet_of(served, images.busybox) as made:
        yield made
    assert mounts_of_host() == mounts


@pytest.fixture
def pod(kubelet: Kubelet) -> Pod:
    return pod_of(kubelet)


@pytest.fixture
def app(kubelet: Kubelet, pod: Pod) -> str:
    """A container with a file that belongs to a user."""
    container = started(kubelet, pod)
    mark(kubelet, container)
    return container


def mark(kubelet: Kubelet, container: str) -> None:
    kubelet.inside(container, f"echo mine > /root/mine; chown {IMAGE_USER} /root/mine; touch /root/of-root")


def assert_same(kubelet: Kubelet, container: str) -> None:
    """Assert that a container is in its user namespace, and that its files have their owners."""
    shown = kubelet.inside(
        container, "cat /proc/self/uid_map; stat -c %u /root/mine /root/of-root /bin; cat /root/mine"
    )
    assert shown.split() == ["0", str(FIRST), str(SIZE), str(IMAGE_USER), "0", "0", "mine"]


def wait_state(kubelet: Kubelet, container: str, state: "pb.ContainerState") -> None:
    wait_until(lambda: kubelet.cri.container_status(container).state == state)


def start_by_hand(kubelet: Kubelet, engine: Engine, *containers: str) -> None:
    """Start containers with Docker alone."""
    for container in containers:
        engine.api.start(container)
    wait_state(kubelet, containers[-1], pb.CONTAINER_RUNNING)


# --- killed processes -------------------------------------------------------------------------------------


def test_a_pod_with_a_killed_containerd_shim_can_be_started_by_hand(
    served: Served, kubelet: Kubelet, pod: Pod, app: str
) -> None:
    for each in {shim_of(served, each) for each in (pod.id, app)}:
        os.kill(each, signal.SIGKILL)
    wait_state(kubelet, app, pb.CONTAINER_EXITED)
    wait_until(lambda: served.engine.api.inspect_container(pod.id)["State"]["Status"] == "exited")

    start_by_hand(kubelet, served.engine, pod.id, app)

    assert_same(kubelet, app)


def shim_of(served: Served, container: str) -> int:
    """Return the containerd-shim of a container."""
    pid = pid_of(served, container)
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent in shims(served.engine)
    return parent


def test_pods_ended_by_a_killed_dockerd_can_be_started_by_hand(
    served: Served, kubelet: Kubelet, pod: Pod, app: str
) -> None:
    served.engine.kill()
    served.engine.start()
    served.wait_answers()
    wait_state(kubelet, app, pb.CONTAINER_EXITED)

    start_by_hand(kubelet, served.engine, pod.id, app)

    assert_same(kubelet, app)


def test_a_container_does_not_start_without_its_pod(served: Served, kubelet: Kubelet, pod: Pod, app: str) -> None:
    for each in (app, pod.id):
        served.engine.api.kill(each)
    wait_state(kubelet, app, pb.CONTAINER_EXITED)

    with pytest.raises(docker.errors.APIError, match="non running container"):
        served.engine.api.start(app)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_pods_survive_a_restart_of_dockerd_with_live_restore(served: Served, images: Images, how: str) -> None:
    mounts = mounts_of_host()
    with served.engine.configured(**{"live-restore": True}):
        served.wait_answers()
        with kubelet_of(served, images.busybox) as kubelet:
            pod = pod_of(kubelet)
            app, later = started(kubelet, pod), created(kubelet, pod)
            mark(kubelet, app)
            pid = pid_of(served, app)

            getattr(served.engine, how)()
            served.engine.start()
            served.wait_answers()

            assert pid_of(served, app) == pid
            assert_same(kubelet, app)
            kubelet.cri.start(later)
            assert kubelet.inside(later, "cat /proc/self/uid_map").split()[1] == str(FIRST)
            served.engine.api.restart(app, timeout=0)
            wait_until(lambda: pid_of(served, app) not in {0, pid})
            wait_state(kubelet, app, pb.CONTAINER_RUNNING)
            assert_same(kubelet, app)
    served.wait_answers()
    assert mounts_of_host() == mounts


# --- orders -----------------------------------------------------------------------------------------------


def test_a_container_whose_order_was_written_before_a_crash_starts(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    container = created(kubelet, pod)
    served.server.kill()
    served.restart()

    kubelet.cri.start(container)

    assert kubelet.inside(container, "cat /proc/self/uid_map").split()[1] == str(FIRST)


def test_a_container_that_a_crash_left_without_order_is_replaced(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    name = pb.ContainerMetadata(name="app")
    left = created(kubelet, pod, metadata=name)
    served.server.kill()
    (served.engine.home / ORDERS / left).unlink()
    served.restart()

    container = created(kubelet, pod, metadata=name)
    kubelet.cri.start(container)

    assert container != left
    assert kubelet.inside(container, "cat /proc/self/uid_map").split()[1] == str(FIRST)
    assert left not in {each.id for each in kubelet.cri.containers()}


def test_a_starting_server_deletes_orders_of_missing_containers(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    stays, goes = created(kubelet, pod), created(kubelet, pod)
    served.server.kill()
    served.engine.api.remove_container(goes)
    (served.engine.home / ORDERS / f".{goes}.0.tmp").touch()
    assert goes in orders_of(served)

    served.restart()

    wait_until(lambda: goes not in orders_of(served))
    assert {pod.id, stays} <= orders_of(served)
    kubelet.cri.start(stays)
    assert kubelet.inside(stays, "cat /proc/self/uid_map").split()[1] == str(FIRST)


def test_a_full_disk_for_orders_fails_the_create_and_leaves_nothing(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    orders = Disk(served.engine.home / ORDERS)
    with orders.mounted():
        before = {row["Id"] for row in served.engine.api.containers(all=True)}
        orders.fill()
        for call in (lambda: created(kubelet, pod), lambda: pod_of(kubelet, FIRST + SIZE)):
            _, message = refusal(call)
            assert "no space left on device" in message
        assert {row["Id"] for row in served.engine.api.containers(all=True)} == before
        orders.make_room()
        assert {path.name for path in (served.engine.home / ORDERS).iterdir()} == set()

        container = created(kubelet, pod)
        kubelet.cri.start(container)

        assert kubelet.inside(container, "cat /proc/self/uid_map").split()[1] == str(FIRST)
        kubelet.cri.remove_container(container)


# --- faults of the runtime --------------------------------------------------------------------------------


@pytest.fixture
def fault(served: Served, tmp_path: Path) -> Iterator[Path]:
    """The file that sets where the engine's runtime fails, see `faulty_runtime`."""
    script = served.engine.home / "oci-runtime"
    before = script.read_text()
    file = tmp_path / "fault"
    program = str(Path(shim.oci_runtime.__file__).with_name("__main__.py"))
    assert program in before
    script.write_text(before.replace(program, f"{_PROGRAM} {file}"))
    yield file
    script.write_text(before)


@pytest.mark.parametrize("member", ["pause", "app"])
@pytest.mark.parametrize("kind", faulty_runtime.FAULTS)
def test_a_runtime_that_fails_at_any_step_starts_nothing_and_leaves_nothing(
    served: Served, kubelet: Kubelet, pod: Pod, fault: Path, tmp_path: Path, kind: str, member: str
) -> None:
    api = served.engine.api
    mounts = [volume(tmp_path), *image_volume(served, kubelet.image)]
    app = created(kubelet, pod, mounts=mounts)
    tried = pod.id if member == "pause" else app
    steps = steps_of_a_start(served, tried, fault)
    assert {"unmount", "attach", "map_ids", "unshare", "replace", "execvp"} <= set(steps)
    before = mounts_of_host()

    for number, step in enumerate(steps, 1):
        fault.write_text(f"{kind} {number}")
        with pytest.raises(docker.errors.APIError):
            api.start(tried)
        where = f"{kind} at step {number} of {len(steps)}, {step}"
        assert not api.inspect_container(tried)["State"]["Running"], where
        wait_until(lambda: tried not in tasks(served.engine))
        assert mounts_of_host() == before, where
        assert list(Path(PLACE).rglob("*")) == [Path(PLACE, "rootfs")], where
        assert programs_left() == [], where

    fault.write_text("")
    start_by_hand_all(kubelet, served, pod, app)
    mark(kubelet, app)
    assert_same(kubelet, app)


def image_volume(served: Served, image: str) -> Sequence[pb.Mount]:
    if served.engine.name in ("20.10", "26"):
        return ()
    mount = volume(Path(), at="/image", image=pb.ImageSpec(image=image), readonly=True)
    mount.host_path = ""
    return (mount,)


def steps_of_a_start(served: Served, container: str, fault: Path) -> list[str]:
    """Start a container without a fault, and stop it. Return the runtime's steps."""
    api = served.engine.api
    fault.write_text("")
    if api.inspect_container(container)["State"]["Running"]:
        api.kill(container)
        wait_until(lambda: container not in tasks(served.engine))
    api.start(container)
    api.kill(container)
    wait_until(lambda: container not in tasks(served.engine))
    return fault.read_text().splitlines()


def start_by_hand_all(kubelet: Kubelet, served: Served, pod: Pod, app: str) -> None:
    if not served.engine.api.inspect_container(pod.id)["State"]["Running"]:
        served.engine.api.start(pod.id)
    start_by_hand(kubelet, served.engine, app)


def programs_left() -> list[int]:
    """Return the pids of the runtime's processes, such as a child left behind."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if os.fsencode(_PROGRAM) in command(pid)]


# --- a reboot ---------------------------------------------------------------------------------------------


@pytest.fixture
def rebooted(node: Node, engine_name: str, node_dirs: NodeDirs) -> Iterator[Served]:
    """A server on a separate engine, on a machine whose reboot can be simulated."""
    engine = make_engine(node, engine_name, variant="-reboot")
    engine.start()
    try:
        for image in (node_images.pause_image(node.busybox), node_images.busybox_image(node.busybox)):
            node_images.load(engine.api, image)
        (node_dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(node_dirs.cni_leases, link=LINK)))
        with own_link(LINK), serving(engine, node_dirs) as made:
            yield made
    finally:
        engine.close()


def reboot(served: Served) -> None:
    """Simulate a power loss: processes, mounts and the files below /run are gone."""
    engine = served.engine
    served.server.kill()
    containers = engine.api.containers(quiet=True)
    processes = [pid_of(served, each["Id"]) for each in containers]
    containerd = engine.containerd()
    engine.kill()
    for pid in (*shims(engine), *processes, *([containerd] if containerd else [])):
        with suppress(ProcessLookupError):  # it ended with another process
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
    for directory in (engine.home, served.dirs.netns):
        unmount_all(directory)
    for path in served.dirs.netns.iterdir():
        path.unlink()
    shutil.rmtree(engine.home / "exec")
    shutil.rmtree(PLACE)
    for name in ("dockerd.pid", "docker.sock"):
        (engine.home / name).unlink(missing_ok=True)
    engine.start()
    served.server.socket.unlink(missing_ok=True)
    served.restart()


def test_a_pod_started_by_hand_after_a_reboot_is_as_before(rebooted: Served) -> None:
    mounts = set(mounts_of_host())
    with kubelet_of(rebooted, node_images.BUSYBOX) as kubelet:
        pod = pod_of(kubelet)
        app = started(kubelet, pod)
        mark(kubelet, app)

        reboot(rebooted)

        assert kubelet.cri.container_status(app).state == pb.CONTAINER_EXITED
        assert kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
        assert {pod.id, app} == orders_of(rebooted)
        with pytest.raises(docker.errors.APIError, match="non running container"):
            rebooted.engine.api.start(app)
        start_by_hand(kubelet, rebooted.engine, pod.id, app)
        assert_same(kubelet, app)
        next_pod = pod_of(kubelet)
        assert kubelet.inside(started(kubelet, next_pod), "cat /proc/self/uid_map").split()[1] == str(FIRST)
    assert set(mounts_of_host()) <= mounts
