"""Whom a container runs as, seen from inside of it and from the kernel."""

from typing import Any

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod, proc_status, secured
from shim.api.v1 import api_pb2 as pb


@pytest.mark.parametrize(
    ("context", "ids"),
    [
        ({}, "0:0"),
        ({"run_as_user": pb.Int64Value(value=1000)}, "1000:1000"),
        ({"run_as_user": pb.Int64Value(value=4321), "run_as_group": pb.Int64Value(value=5432)}, "4321:5432"),
        ({"run_as_username": "www"}, "1000:1000"),
        ({"run_as_username": "www", "run_as_group": pb.Int64Value(value=50)}, "1000:50"),
    ],
    ids=["image", "uid", "uid and gid", "name", "name and gid"],
)
def test_the_user_is_the_one_asked_for(kubelet: Kubelet, pod: Pod, context: dict[str, Any], ids: str) -> None:
    container = kubelet.started(pod, **secured(**context))

    assert kubelet.inside(container, "echo $(id -u):$(id -g)") == ids + "\n"


def test_supplemental_groups_are_added_to_the_images(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    context = {"run_as_username": "www", "supplemental_groups": [7777, 8888]}
    container = kubelet.started(pod, **secured(**context))

    assert set(proc_status(served, container)["Groups"]) >= {"7777", "8888", "44", "50"}
