from shim.api.v1 import api_pb2 as pb
from shim.spec.devices import docker_devices


def made(host_path: str, container_path: str = "", permissions: str = "", *, source: str = "") -> dict[str, str]:
    device = pb.Device(host_path=host_path, container_path=container_path, permissions=permissions)
    return docker_devices([device], [source or host_path])[0]


def test_a_device_and_its_rights() -> None:
    assert made("/dev/null", "/dev/n", "r") == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/n",
        "CgroupPermissions": "r",
    }


def test_what_is_not_said_is_as_on_the_host() -> None:
    assert made("/dev/null") == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/null",
        "CgroupPermissions": "rwm",
    }


def test_the_container_sees_the_name_that_was_asked_for_and_gets_what_it_leads_to() -> None:
    device = made("/dev/disk/by-id/x", "/dev/../dev//x/", source="/dev/sda")
    assert (device["PathOnHost"], device["PathInContainer"]) == ("/dev/sda", "/dev/x")
    assert made("/dev/disk/by-id/x", source="/dev/sda")["PathInContainer"] == "/dev/disk/by-id/x"
