import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.rpcs import LIMITS, RPCS, Kind


def test_every_rpc_of_the_cri_has_a_row() -> None:
    services = pb.DESCRIPTOR.services_by_name.values()

    assert {method.name for service in services for method in service.methods} == RPCS.keys()


def test_every_kind_has_a_limit() -> None:
    assert LIMITS.keys() == set(Kind)


@pytest.mark.parametrize("name", [name for name in RPCS if name.startswith(("List", "Stream", "Container", "Pod"))])
def test_reads_share_no_limit_with_rpcs_that_wait(name: str) -> None:
    assert RPCS[name].kind in {Kind.READ, Kind.IMAGE}
    assert not RPCS[name].mutates


def test_a_stop_waits_only_for_pod_sandboxes() -> None:
    assert {name for name, rpc in RPCS.items() if rpc.must_complete} == {
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "RestorePod",
    }
