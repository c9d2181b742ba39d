from shim.api.v1 import api_pb2 as pb
from shim.spec.devices import docker_devices


def made(host_path: str, container_path: str = "", permissions: str = "", *, source: str = "") -> dict[str, str]:
    device = pb.Device(host_path=host_path, container_path=container_path, permissions=permissions)
    return docker_devices([device], [source or host_path])[0]


def test_a_device_keeps_its_permissions() -> None:
    assert made("/dev/null", "/dev/n", "r") == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/n",
        "CgroupPermissions": "r",
    }


def test_missing_fields_default_to_the_hosts_path_and_all_permissions() -> None:
    assert made("/dev/null") == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/null",
        "CgroupPermissions": "rwm",
    }


def test_a_link_keeps_its_name_in_the_container_and_is_resolved_on_the_host() -> None:
    device = made("/dev/disk/by-id/x", "/dev/../dev//x/", source="/dev/sda")
    assert (device["PathOnHost"], device["PathInContainer"]) == ("/dev/sda", "/dev/x")
    assert made("/dev/disk/by-id/x", source="/dev/sda")["PathInContainer"] == "/dev/disk/by-id/x"
