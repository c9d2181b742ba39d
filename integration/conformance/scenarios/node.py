"""The node: its status, and restarts of its parts under running pods."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.conformance.cluster import NODE_NAME, SHUTDOWN_SECONDS, condition
from integration.conformance.pleg import streams
from integration.conformance.scenario import Case, Skipped, container, eventually, pod, scenario
from integration.node import images
from integration.node.isolation import this_node
from shim.api.v1 import api_pb2 as pb

_BUILT = "built.example"
_MANY_IMAGES = 3000
_COLLECTION_SECONDS = 600.0
"""The kubelet collects images every five minutes."""


@scenario()
def node_reports_its_runtime(case: Case) -> None:
    """Name, version and conditions."""
    status = case.cluster.node()["status"]
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("docker://")
    assert condition(case.cluster.node(), "Ready") == "True"
    assert case.status(case.run(pod("p")))["containerID"].startswith("docker://")


@scenario(alone=True, since=(1, 28))
def kubelet_takes_the_cgroup_driver_from_the_server(case: Case) -> None:
    """Whatever its configuration says."""
    other = {"cgroupfs": "systemd", "systemd": "cgroupfs"}[case.cluster.served.engine.cgroup_driver]
    with _kubelet_with(case, cgroupDriver=other):
        case.run(pod("p"))
        log = case.cluster.kubelet.log.read_text()
        assert "Using cgroup driver setting received from the CRI runtime" in log


@scenario(alone=True)
def unused_images_are_collected_by_the_thousand(case: Case) -> None:
    """The kubelet has to free a disk that other files fill. Pods start meanwhile, and images of containers stay."""
    api = case.cluster.served.engine.api
    case.run(pod("p"))
    images.load_many(api, [f"{_BUILT}/build:{number}" for number in range(_MANY_IMAGES)])
    eventually(lambda: _listed(case) == _MANY_IMAGES, lambda: _listed(case), seconds=_COLLECTION_SECONDS)
    # The threshold is so low that each collection removes all unused images.
    with _kubelet_with(case, imageGCHighThresholdPercent=1, imageGCLowThresholdPercent=0, imageMinimumGCAge="1s"):
        eventually(lambda: _listed(case) < _MANY_IMAGES, lambda: _listed(case), seconds=_COLLECTION_SECONDS)
        case.run(pod("q"))
        eventually(lambda: not _listed(case), lambda: _listed(case), seconds=_COLLECTION_SECONDS)
        assert not api.images(name=f"{_BUILT}/build", quiet=True)
        assert case.is_ready("p")
        assert case.exec("p", "echo", "here") == "here\n"


def _listed(case: Case) -> int:
    """Return how many images the server lists: Docker needs seconds to list thousands, and would do nothing else."""
    found = case.cluster.served.cri.images.ListImages(pb.ListImagesRequest()).images
    return sum(any(tag.startswith(f"{_BUILT}/") for tag in image.repo_tags) for image in found)


@scenario(since=(1, 30))
def checkpoint_of_a_container_is_written_by_the_kubelets_api(case: Case) -> None:
    """The archive is where the answer says, only root can read it, and the container continues."""
    node = this_node()
    if node is None or node.criu is None:
        raise Skipped("criu is missing")
    count = "i=0; while :; do i=$((i+1)); echo $i > /count; sleep 0.1; done"
    case.run(pod("p", container("sh", "-c", count)))
    answer = case.cluster.api.post(f"/api/v1/nodes/{NODE_NAME}/proxy/checkpoint/{case.namespace}/p/main")
    (written,) = answer["items"]
    archive = Path(written)
    assert archive.parent == case.cluster.disk / "checkpoints"
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as found:
        names = {name.removeprefix("./") for name in found.getnames()}
    assert {"config.dump", "spec.dump", "status.dump", "rootfs-diff.tar", "checkpoint/inventory.img"} <= names
    archive.unlink()
    before = int(case.exec("p", "cat", "/count"))
    eventually(lambda: int(case.exec("p", "cat", "/count") or 0) > before)
    assert case.restarts("p") == 0


@scenario(alone=True)
def restart_of_the_kubelet_leaves_pods_alone(case: Case) -> None:
    """The containers stay the same, no restart is counted, and everything works afterwards."""
    before = _three_pods(case)
    _stop_kubelet(case)
    case.cluster.start_kubelet()
    _unchanged(case, before)


@scenario(alone=True)
def restart_of_the_server_leaves_pods_alone(case: Case) -> None:
    """After a stop, and after a kill."""
    before = _three_pods(case)
    server = case.cluster.served.server
    server.stop()
    case.cluster.served.restart()
    _unchanged(case, before)
    server.kill()
    server.socket.unlink(missing_ok=True)
    case.cluster.served.restart()
    _unchanged(case, before)


@scenario(alone=True)
def restart_of_docker_leaves_pods_alone(case: Case) -> None:
    """With live-restore."""
    before = _three_pods(case)
    case.cluster.served.engine.restart()
    _unchanged(case, before)


@scenario(alone=True)
def docker_that_hangs_makes_the_node_not_ready(case: Case) -> None:
    """Only while Docker hangs; pods keep running."""
    before = _three_pods(case)
    case.cluster.served.engine.freeze()
    try:
        eventually(lambda: condition(case.cluster.node(), "Ready") != "True", case.cluster.node)
    finally:
        case.cluster.served.engine.thaw()
    eventually(case.cluster.ready, case.cluster.node)
    _unchanged(case, before)


@scenario(alone=True)
def node_that_was_off_runs_its_pods_again(case: Case) -> None:
    """Kubelet, server and Docker stop, all processes of pods end, and everything starts again."""
    case.run(pod("p"))
    before = case.status("p")["containerID"]
    served = case.cluster.served
    _stop_kubelet(case)
    served.server.stop()
    for item in served.engine.api.containers(quiet=True):
        served.engine.api.kill(item["Id"])
    served.engine.stop()
    served.engine.start()
    served.restart()
    case.cluster.start_kubelet()
    eventually(lambda: case.is_ready("p") and case.status("p")["containerID"] != before, lambda: case.pod("p"))
    assert case.restarts("p") == 1
    assert case.exec("p", "echo", "back") == "back\n"


@scenario(alone=True)
def shutdown_of_the_node_ends_pods_in_their_grace(case: Case) -> None:
    """The machine shuts down only after the kubelet releases its lock. A cancelled shutdown has no further effect."""
    place = case.cluster.home / case.namespace
    shared = {"name": "shared", "mountPath": "/shared"}
    host = {"name": "shared", "hostPath": {"path": str(place), "type": "DirectoryOrCreate"}}
    ends = container("sh", "-c", "trap 'sleep 1; echo bye >/shared/bye; exit 0' TERM; while :; do sleep 0.2; done")
    case.run(pod("p", {**ends, "volumeMounts": [shared]}, volumes=[host], terminationGracePeriodSeconds=5))
    logind = case.cluster.logind
    assert logind.is_inhibited
    logind.shut_down(active=True)
    try:
        logind.wait_released(SHUTDOWN_SECONDS * 6)
        assert (place / "bye").read_text() == "bye\n"
        eventually(lambda: case.phase("p") in ("Failed", "Succeeded"), lambda: case.pod("p"))
        eventually(lambda: condition(case.pod("p"), "DisruptionTarget") == "True", lambda: case.pod("p")["status"])
        eventually(lambda: condition(case.cluster.node(), "Ready") == "False", case.cluster.node)
    finally:
        logind.shut_down(active=False)
    eventually(case.cluster.ready, case.cluster.node)
    case.run(pod("later"))


@scenario()
def events_reach_a_kubelet_that_asks_for_them(case: Case) -> None:
    """With the gate EventedPLEG: the stream is open, and the kubelet has not fallen back to lists."""
    if not case.cluster.gates.get("EventedPLEG"):
        raise Skipped("the gate EventedPLEG is off")
    case.run(pod("p"))
    found = streams(case.kubectl)
    assert found.in_use, found


@contextmanager
def _kubelet_with(case: Case, **settings: object) -> Iterator[None]:
    """Run the kubelet with other settings inside the block."""
    file = case.cluster.home / "kubelet.json"
    before = file.read_text()
    _stop_kubelet(case)
    file.write_text(json.dumps({**json.loads(before), **settings}))
    try:
        case.cluster.start_kubelet()
        yield
    finally:
        _stop_kubelet(case)
        file.write_text(before)
        case.cluster.start_kubelet()


def _stop_kubelet(case: Case) -> None:
    case.cluster.kubelet.stop(timeout=60)


def _three_pods(case: Case) -> dict[str, Any]:
    """Run a plain pod, a pod with two containers and a pod on the host network; return what must not change."""
    case.run(pod("plain"))
    case.run(pod("two", container(), container(name="other")))
    case.run(pod("host", hostNetwork=True))
    return {name: _identity(case, name) for name in ("plain", "two", "host")}


def _identity(case: Case, name: str) -> Any:
    statuses = case.pod(name)["status"]["containerStatuses"]
    return [(status["containerID"], status["restartCount"]) for status in statuses], case.pod(name)["status"]["podIP"]


def _unchanged(case: Case, before: dict[str, Any]) -> None:
    """Wait until the node works, and compare; a new pod proves that the kubelet has synced all pods."""
    eventually(case.cluster.ready, case.cluster.node)
    marker = f"new-{len(case.get('pods')['items'])}"
    case.run(pod(marker))
    assert case.exec(marker, "echo", "works") == "works\n"
    for name, identity in before.items():
        assert case.exec(name, "echo", "works") == "works\n"
        assert _identity(case, name) == identity
    assert Path(case.cluster.served.server.socket).exists()
