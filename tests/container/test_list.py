from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.list import list_containers
from shim.container.status import container_status
from shim.domain.errors import InvalidArgument
from shim.image.list import list_images
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running


def state(value: pb.ContainerState) -> pb.ContainerStateValue:
    return pb.ContainerStateValue(state=value)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, {"created", "running", "exited"}),
        ({"state": state(pb.CONTAINER_CREATED)}, {"created"}),
        ({"state": state(pb.CONTAINER_RUNNING)}, {"running"}),
        ({"state": state(pb.CONTAINER_EXITED)}, {"exited"}),
        ({"state": state(pb.CONTAINER_UNKNOWN)}, set()),
        ({"label_selector": {"tier": "running"}}, {"running"}),
        ({"label_selector": {"tier": "running", "x": "y"}}, set()),
        ({"pod_sandbox_id": "f" * 64}, set()),
    ],
)
def test_lists_are_filtered(wanted: dict[str, Any], expected: set[str], rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox, "created")
    running(rt, sandbox, "running")
    exited = running(rt, sandbox, "exited")
    engine.exit_container(exited)
    rt.view.refresh_container(exited)
    found = list_containers(rt, filter=pb.ContainerFilter(**wanted))
    assert {container.metadata.name for container in found} == expected


def test_ids_may_be_prefixes(rt: Runtime) -> None:
    first, second = ready_pod(rt, "a"), ready_pod(rt, "b")
    container = created(rt, first)
    created(rt, second)
    for wanted in ({"id": container}, {"id": container[:16]}, {"pod_sandbox_id": first[:16]}):
        (found,) = list_containers(rt, filter=pb.ContainerFilter(**wanted))
        assert (found.id, found.pod_sandbox_id) == (container, first)


def test_an_ambiguous_prefix_is_an_error_and_an_unknown_id_matches_nothing(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    containers = [created(rt, sandbox, f"c{number}") for number in range(17)]  # two ids begin with the same digit
    first = next(c[0] for c in containers if sum(other[0] == c[0] for other in containers) > 1)
    with pytest.raises(InvalidArgument, match=f"'{first}' fits "):
        list_containers(rt, filter=pb.ContainerFilter(id=first))
    assert list_containers(rt, filter=pb.ContainerFilter(id="no such")) == []


def test_the_image_has_no_runtime_handler(rt: Runtime) -> None:
    """Otherwise a kubelet that distinguishes images by handler would find none in use, and collect them all."""
    asked = pb.ImageSpec(image=BUSYBOX, user_specified_image="busybox", runtime_handler="runc")
    container = created(rt, ready_pod(rt), image=asked)

    [row] = list_containers(rt, filter=pb.ContainerFilter(id=container))
    [image] = list_images(rt, filter=pb.ImageFilter(image=pb.ImageSpec(image=BUSYBOX)))

    assert (row.image_id, row.image.runtime_handler) == (image.id, image.spec.runtime_handler) == (image.id, "")
    assert row.image.user_specified_image == "busybox"
    assert container_status(rt, container_id=container, verbose=False).status.image.runtime_handler == "runc"
