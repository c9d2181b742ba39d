"""Many pods at the same time."""

from concurrent.futures import ThreadPoolExecutor

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
