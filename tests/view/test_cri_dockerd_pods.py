"""Names of cri-dockerd's containers are parsed, and no other names."""

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.engine.answers import ContainerSettings, HostSettings, MountPoint
from shim.view.cri_dockerd_pods import LegacyName, container_config, legacy_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "/k8s_POD_web_shop_uid-1_0",
            LegacyName(container="POD", pod="web", namespace="shop", uid="uid-1", attempt=0),
        ),
        (
            "k8s_app_web_shop_uid-1_12",
            LegacyName(container="app", pod="web", namespace="shop", uid="uid-1", attempt=12),
        ),
        (
            "k8s_app_web.x_shop_uid-1_4294967295_0badcafe",
            LegacyName(container="app", pod="web.x", namespace="shop", uid="uid-1", attempt=4294967295),
        ),
    ],
    ids=["sandbox", "container", "random suffix"],
)
def test_legacy_names_are_parsed(name: str, expected: LegacyName) -> None:
    assert legacy_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "k8s",
        "k8s_app_web_shop_uid",
        "k8s_app_web_shop_uid_x",
        "k8s_app_web_shop_uid_-1",
        "k8s_app_web_shop_uid_²",
        "k8s_app_web_shop_uid_4294967296",
        "k8s_app_web_shop_uid_1_0badcaf",
        "k8s_app_web_shop_uid_1_0BADCAFE",
        "k8s_app_web_shop_uid_1_0badcafe_x",
        "compose_app_web_shop_uid_1",
    ],
)
def test_other_names_are_not_parsed(name: str) -> None:
    assert legacy_name(name) is None


def test_the_mounts_of_a_legacy_container_are_dockers() -> None:
    name = LegacyName(container="app", pod="web", namespace="shop", uid="uid-1", attempt=0)
    log = "/var/lib/kubelet/pods/uid-1/containers/app/0badcafe"
    mounts = [
        MountPoint(source=log, destination="/dev/termination-log", propagation="rprivate"),
        MountPoint(source="/data", destination="/data", rw=False, propagation="rslave"),
        MountPoint(source="/shared", destination="/shared", propagation="rshared"),
        MountPoint(destination="/tmp"),  # a tmpfs
    ]
    config = container_config(name, settings=ContainerSettings(), host=HostSettings(), mounts=mounts)
    assert list(config.mounts) == [
        pb.Mount(host_path=log, container_path="/dev/termination-log"),
        pb.Mount(
            host_path="/data",
            container_path="/data",
            readonly=True,
            propagation=pb.PROPAGATION_HOST_TO_CONTAINER,
        ),
        pb.Mount(host_path="/shared", container_path="/shared", propagation=pb.PROPAGATION_BIDIRECTIONAL),
    ]
