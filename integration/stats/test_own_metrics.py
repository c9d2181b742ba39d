"""The server's Prometheus metrics, which also show that stats and metrics do not query Docker."""

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.cri import container_config, pod_config
from integration.networks import bridge, conflist
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node, new_home
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

PORT = 9181
LINK = "pods-counted"
"""A separate bridge: the shared server's must stay."""
OF_THE_VIEW = {"list_containers", "list_images", "inspect_image"}
"""Docker calls of the node view, once a minute regardless of RPCs."""


@pytest.fixture(scope="module")
def counting(engine: Engine, images: Images, node: Node) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run a server with metrics."""
    dirs = make_node_dirs(node, new_home("counting"))
    (dirs.cni_conf / "10-pods.conflist").write_text(
        conflist(bridge(dirs.cni_leases, subnets=["10.90.0.0/16"], link=LINK))
    )
    with own_link(LINK), serving(engine, dirs, metrics_bind_addr=PORT) as made:
        yield made


def get(path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def counted(name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its labels."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(get("/metrics"))
        for sample in family.samples
        if sample.name == f"{name}_count"
    }


def docker_calls() -> dict[str, float]:
    found = counted("pydockershim_docker_call_seconds")
    return {operation: count for (operation, _), count in found.items() if operation not in OF_THE_VIEW}


def test_the_calls_of_a_pods_life_are_counted(counting: Served, images: Images) -> None:
    pod = pod_config("counted")
    sandbox = counting.cri.run(pod)
    counting.cri.start(counting.cri.create(sandbox, container_config("c", image=images.busybox), pod=pod))

    rpcs = counted("pydockershim_rpc_seconds")
    assert rpcs["OK", "StartContainer"] >= 1
    assert counted("pydockershim_docker_call_seconds")["create_container", "ok"] >= 2
    assert counted("pydockershim_cni_run_seconds")["bridge", "ok", "ADD"] >= 1
    assert 'pydockershim_view_records{kind="containers"} 1.0' in get("/metrics")
    assert get("/healthz") == "ok\n"
    counting.clear()


def test_stats_and_metrics_never_ask_docker(counting: Served, images: Images) -> None:
    pod = pod_config("quiet")
    sandbox = counting.cri.run(pod)
    container = counting.cri.create(sandbox, container_config("c", image=images.busybox), pod=pod)
    counting.cri.start(container)
    runtime = counting.cri.runtime
    # After a start the view inspects containers on events, a moment later.
    seen: list[dict[str, float]] = [docker_calls()]

    def settled() -> bool:
        seen.append(docker_calls())
        return len(seen) > 50 and seen[-1] == seen[-50]

    wait_until(settled)
    for _ in range(20):
        assert len(runtime.ListContainerStats(pb.ListContainerStatsRequest()).stats) == 1
        assert len(runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest()).stats) == 1
        assert len(runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest()).pod_metrics) == 1
        runtime.ContainerStats(pb.ContainerStatsRequest(container_id=container))
        runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id=sandbox))
        runtime.ListMetricDescriptors(pb.ListMetricDescriptorsRequest())

    assert docker_calls() == seen[-1]
    counting.clear()
