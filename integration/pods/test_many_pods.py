"""Many pods at the same time."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from shim.api.v1 import api_pb2 as pb

PODS = 30
AT_A_TIME = 8


def test_thirty_pods_come_and_go_without_a_trace(served: Served, images: Images) -> None:
    cri = served.cri
    before = served.snapshot()

    def up(number: int) -> tuple[str, str]:
        config = pod_config(f"many-{number}")
        sandbox = cri.run(config)
        container = cri.create(sandbox, container_config("main", image=images.busybox), pod=config)
        cri.start(container)
        return sandbox, container

    def down(pod: tuple[str, str]) -> None:
        sandbox, container = pod
        cri.stop_container(container, timeout=0)
        cri.stop(sandbox)
        cri.remove_container(container)
        cri.remove(sandbox)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        pods = list(pool.map(up, range(PODS)))
        statuses = [cri.sandbox_status(sandbox) for sandbox, _ in pods]
        assert {status.state for status in statuses} == {pb.SANDBOX_READY}
        assert len({status.network.ip for status in statuses}) == PODS
        assert {c.id for c in cri.containers() if c.state == pb.CONTAINER_RUNNING} >= {c for _, c in pods}
        list(pool.map(down, pods))

    assert served.snapshot() == before


def test_pause_containers_are_stopped_one_by_one_where_dockers_networks_deadlock(served: Served) -> None:
    if served.engine.name != "20.10":
        pytest.skip("Docker's networks do not deadlock")
    cri = served.cri
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        pods = list(pool.map(lambda number: cri.run(pod_config(f"ending-{number}")), range(AT_A_TIME)))
        began = int(time.time())
        list(pool.map(cri.stop, pods))
    happened = served.engine.api.events(since=began, until=int(time.time()) + 1, decode=True)
    for pod in pods:
        cri.remove(pod)
    ends = [end for event in happened if (end := _end_of_pause(event)) is not None and end[1] in pods]
    assert len(ends) == 2 * AT_A_TIME
    assert [what for what, _ in ends] == ["kill", "disconnect"] * AT_A_TIME
    assert [pod for _, pod in ends[::2]] == [pod for _, pod in ends[1::2]]


def _end_of_pause(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return action and pause container if the event is its kill or its disconnect from the network."""
    actor = event["Actor"]
    match event["Type"], event["Action"]:
        case "container", "kill":
            return "kill", actor["ID"]
        case "network", "disconnect":
            return "disconnect", actor["Attributes"]["container"]
        case _:
            return None
