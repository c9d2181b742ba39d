"""An order that the OCI runtime would not get is an error: the container would lack the requested settings."""

from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.engine.answers import EngineInfo
from shim.oci_runtime.order import Restore
from shim.spec.order import order_container

NEEDS: dict[str, dict[str, Any]] = {
    "restore": {"restore": Restore(directory="/checkpoint", path="/usr/bin")},
    "mount options": {"mounts": [pb.Mount(container_path="/x", host_path="/y", mount_options=["noexec"])]},
    "configuration": {"config": {"devices": []}},
    "process": {"process": {"rlimits": []}},
}


@pytest.mark.parametrize("asked", NEEDS.values(), ids=NEEDS)
@pytest.mark.parametrize("runtime", ["runc", "pydockershim"])
def test_without_the_servers_runtime_an_order_fails(asked: dict[str, Any], runtime: str) -> None:
    """Docker has lost the runtime since the field was checked: daemon.json was changed and reloaded."""
    with pytest.raises(FailedPrecondition, match="order container c: Docker has no OCI runtime pydockershim"):
        order_container(EngineInfo(), "c", runtime=runtime, pod=pb.PodSandboxConfig(), **asked)


def test_a_container_without_an_order_needs_no_runtime() -> None:
    mounts = [pb.Mount(container_path="/x", host_path="/y")]
    order_container(EngineInfo(), "c", runtime="runc", pod=pb.PodSandboxConfig(), mounts=mounts)
