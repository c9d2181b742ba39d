"""Requests and limits, their change in place, out-of-memory kills, stats, and full disks."""

import json
import subprocess
from pathlib import Path
from typing import Any

from integration.conformance.cluster import DISK_MIB, condition
from integration.conformance.scenario import Case, Skipped, container, eventually, pod, scenario

_LIMITS = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "64Mi"}}
_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
_MEMORY = "/sys/fs/cgroup/memory.max" if _V2 else "/sys/fs/cgroup/memory/memory.limit_in_bytes"
_CPU = "/sys/fs/cgroup/cpu.max" if _V2 else "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"


@scenario()
def limits_are_in_force(case: Case) -> None:
    """As the container reads them."""
    case.run(pod("p", container(resources=_LIMITS)))
    assert int(case.exec("p", "cat", _MEMORY)) == 64 << 20
    assert case.exec("p", "cat", _CPU).split()[0] == "50000"


@scenario()
def limits_are_resized_in_place(case: Case) -> None:
    """Up and down without a restart; the pod's status shows the new limits."""
    case.run(pod("p", container(resources=_LIMITS)))
    before = case.status("p")["containerID"]
    for cpu, memory in (("700m", "96Mi"), ("300m", "80Mi")):
        _resize(case, {"limits": {"cpu": cpu, "memory": memory}})
        quota, size = int(cpu[:-1]) * 100, int(memory[:-2]) << 20
        eventually(lambda quota=quota: case.exec("p", "cat", _CPU).split()[0] == str(quota))  # type: ignore[misc]
        eventually(lambda size=size: int(case.exec("p", "cat", _MEMORY)) == size)  # type: ignore[misc]
        eventually(lambda memory=memory: _reported(case).get("memory") == memory, lambda: case.status("p"))  # type: ignore[misc]
    assert case.status("p")["containerID"] == before
    assert case.restarts("p") == 0


@scenario()
def resize_restarts_where_the_pod_asks_for_it(case: Case) -> None:
    """According to resizePolicy."""
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    case.run(pod("p", container(resources=_LIMITS, resizePolicy=policy)))
    _resize(case, {"limits": {"memory": "96Mi"}, "requests": {"memory": "96Mi"}})
    eventually(lambda: case.restarts("p") == 1)
    eventually(lambda: case.is_ready("p") and int(case.exec("p", "cat", _MEMORY)) == 96 << 20)


def _resize(case: Case, resources: dict[str, Any]) -> None:
    patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    done = case.kubectl.try_to("patch", "pod", "p", "--subresource=resize", "--patch", json.dumps(patch))
    if "the server could not find the requested resource" in done.err:
        raise Skipped("this API server has no subresource resize")
    assert done.code == 0, done.err


def _reported(case: Case) -> dict[str, str]:
    return dict(case.status("p").get("resources", {}).get("limits", {}))


@scenario()
def container_that_needs_too_much_memory_is_reported(case: Case) -> None:
    """As OOMKilled."""
    eat = container("sh", "-c", "tail /dev/zero", resources={"limits": {"memory": "16Mi"}})
    case.kubectl.apply(pod("p", eat, restartPolicy="Never"))
    eventually(lambda: case.phase("p") == "Failed")
    terminated = case.status("p")["state"]["terminated"]
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)


@scenario()
def classes_of_pods_have_their_control_groups(case: Case) -> None:
    """Guaranteed, burstable and best effort."""
    equal = {"cpu": "100m", "memory": "32Mi"}
    wanted = {
        "guaranteed": ({"limits": equal, "requests": equal}, ""),
        "burstable": ({"requests": equal}, "burstable"),
        "besteffort": ({}, "besteffort"),
    }
    for name, (resources, part) in wanted.items():
        case.run(pod(name, container(resources=resources)))
        assert case.pod(name)["status"]["qosClass"].lower() == name
        uid = case.pod(name)["metadata"]["uid"]
        pid = int(case.cluster.served.engine.api.inspect_container(_docker_id(case, name))["State"]["Pid"])
        path = Path(f"/proc/{pid}/cgroup").read_text()
        assert uid in path or uid.replace("-", "_") in path, path
        assert not part or part in path, path


@scenario()
def stats_of_pods_are_in_the_summary(case: Case) -> None:
    """CPU and memory; also the pod's network if the stats come from the server."""
    case.run(pod("p", container("sh", "-c", "while :; do :; done", resources={"limits": {"cpu": "100m"}})))

    def figures() -> dict[str, Any]:
        text = case.kubectl("get", "--raw", "/api/v1/nodes/node/proxy/stats/summary")
        pods = [item for item in json.loads(text)["pods"] if item["podRef"]["uid"] == case.pod("p")["metadata"]["uid"]]
        return dict(pods[0]) if pods else {}

    def complete() -> bool:
        found = figures()
        cpu, memory = found.get("cpu", {}), found.get("memory", {})
        return bool(cpu.get("usageNanoCores") and memory.get("workingSetBytes") and found.get("containers"))

    eventually(complete, figures)
    if case.cluster.gates.get("PodAndContainerStatsFromCRI"):
        eventually(lambda: figures().get("network", {}).get("rxBytes") is not None, figures)


@scenario()
def metrics_name_the_containers(case: Case) -> None:
    """At /metrics/cadvisor, with the labels that dashboards join on."""
    case.run(pod("p", container(resources=_LIMITS)))
    wanted = [f'namespace="{case.namespace}"', 'pod="p"', 'container="main"']

    def found(metric: str) -> bool:
        text = case.kubectl("get", "--raw", "/api/v1/nodes/node/proxy/metrics/cadvisor")
        return any(line.startswith(metric + "{") and all(part in line for part in wanted) for line in text.splitlines())

    if not case.cluster.gates.get("PodAndContainerStatsFromCRI"):
        raise Skipped(
            "without PodAndContainerStatsFromCRI they are cAdvisor's, which does not know Docker's containers"
        )
    for metric in ("container_cpu_usage_seconds_total", "container_memory_working_set_bytes"):
        eventually(lambda metric=metric: found(metric))  # type: ignore[misc]


@scenario(needs=["crictl"])
def crictl_has_stats_while_a_kubelet_polls(case: Case) -> None:
    """Each call succeeds, although crictl needs two samples a second apart."""
    case.run(pod("p"))
    endpoint = f"--runtime-endpoint=unix://{case.cluster.served.server.socket}"
    for verb in ("stats", "statsp"):
        for _ in range(3):
            words = [str(case.cluster.binaries["crictl"]), endpoint, verb, "--output=json"]
            done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["stats"]


@scenario(alone=True)
def full_disk_evicts_its_pod(case: Case) -> None:
    """The node reports DiskPressure and later accepts pods again; other pods keep running."""
    steady = case.run(pod("steady", container(resources=_LIMITS)))
    fill = f"dd if=/dev/zero of=/v/file bs=1M count={int(DISK_MIB * 0.75)}; sleep 3600"
    volume = {"name": "v", "emptyDir": {}}
    case.kubectl.apply(
        pod("greedy", container("sh", "-c", fill, volumeMounts=[{"name": "v", "mountPath": "/v"}]), volumes=[volume])
    )
    eventually(lambda: condition(case.cluster.node(), "DiskPressure") == "True", case.cluster.node)
    eventually(lambda: case.pod("greedy").get("status", {}).get("reason") == "Evicted", lambda: case.pod("greedy"))
    eventually(lambda: condition(case.cluster.node(), "DiskPressure") == "False", case.cluster.node)
    assert case.restarts(steady) == 0
    eventually(lambda: not [taint for taint in case.cluster.node()["spec"].get("taints", ()) if "disk" in taint["key"]])
    case.run(pod("later"))


def _docker_id(case: Case, name: str) -> str:
    return str(case.status(name)["containerID"]).rpartition("/")[2]
