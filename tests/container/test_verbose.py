import json
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.container import verbose
from shim.container.status import container_status
from shim.runtime import Runtime
from shim.sandbox.status import pod_sandbox_status
from tests.conftest import BUSYBOX
from tests.pods import created, ready_pod, running


def info(rt: Runtime, container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(container_status(rt, container_id=container, verbose=True).info["info"])
    return found


def test_the_configuration_has_the_form_that_go_writes() -> None:
    config = pb.ContainerConfig(
        labels={"a": "b"}, mounts=[pb.Mount(host_path="/x", propagation=pb.PROPAGATION_BIDIRECTIONAL)]
    )
    config.linux.resources.memory_limit_in_bytes = 1 << 40

    assert verbose._plain(config) == {
        "labels": {"a": "b"},
        "mounts": [{"host_path": "/x", "propagation": 2}],
        "linux": {"resources": {"memory_limit_in_bytes": 1 << 40}},
    }


def test_a_container_has_its_image_and_configuration(rt: Runtime) -> None:
    rt.facts.info()

    found = info(rt, created(rt, ready_pod(rt)))

    assert found["image"] == BUSYBOX
    assert found["config"]["metadata"]["name"] == "app"
    assert found["privileged"] is False
    assert found["snapshotter"] == rt.facts.info().driver != ""
    assert (found["runtimeSpec"], found["runtimeType"]) == (None, "")


def test_a_container_that_is_not_runcs_has_no_specification(rt: Runtime) -> None:
    found = info(rt, running(rt, ready_pod(rt)))

    assert found["pid"] > 0
    assert found["runtimeSpec"] is None


def test_a_pod_has_its_image_and_configuration(rt: Runtime) -> None:
    found = json.loads(pod_sandbox_status(rt, sandbox_id=ready_pod(rt), verbose=True).info["info"])

    assert "pause" in found["image"]
    assert found["config"]["metadata"]["namespace"]
    assert found["privileged"] is False
