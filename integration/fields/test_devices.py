"""Devices of the node in containers: `config.devices` and `config.CDI_devices`."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod, refusal, secured
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

Code = grpc.StatusCode
OLD = "20.10"

LOCAL_MAJOR = 60
"""A number for experiments, without a driver: open fails with ENXIO if the control group allows it, else with EPERM."""
ALLOWED, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A directory with devices and with files that are not devices."""
    for number, name in enumerate(("one", "nodes/two", "nodes/below/three"), 1):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(tmp_path / name, 0o20666, os.makedev(LOCAL_MAJOR, number))
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    return tmp_path


def rights(kubelet: Kubelet, container: str, path: str) -> str:
    """Return which of `r` and `w` the device's control group allows. Docker allows `m` for all devices."""
    said = {"r": kubelet.inside(container, f": <{path}"), "w": kubelet.inside(container, f": >>{path}")}
    assert all(ALLOWED in words or DENIED in words for words in said.values()), said
    return "".join(right for right, words in said.items() if ALLOWED in words)


# --- host devices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("permissions", ["r", "w", "rw", "rwm", "mr", "m"])
def test_a_device_has_the_permissions_that_were_asked_for(
    kubelet: Kubelet, pod: Pod, places: Path, permissions: str
) -> None:
    device = pb.Device(host_path=str(places / "one"), container_path="/dev/mine", permissions=permissions)

    container = kubelet.started(pod, devices=[device])

    assert kubelet.inside(container, "stat -c '%F %t:%T' /dev/mine") == "character special file 3c:1\n"
    assert set(rights(kubelet, container, "/dev/mine")) == set(permissions) - {"m"}


def test_a_device_that_was_not_asked_for_cannot_be_opened(kubelet: Kubelet, pod: Pod, places: Path) -> None:
    container = kubelet.started(pod, mounts=[pb.Mount(host_path=str(places / "one"), container_path="/dev/mine")])

    assert rights(kubelet, container, "/dev/mine") == ""


def test_path_and_permissions_default_to_the_nodes(kubelet: Kubelet, pod: Pod, places: Path) -> None:
    container = kubelet.started(pod, devices=[pb.Device(host_path=str(places / "one"))])

    assert rights(kubelet, container, str(places / "one")) == "rw"


def test_a_link_to_a_device_is_followed(kubelet: Kubelet, pod: Pod, places: Path) -> None:
    device = pb.Device(host_path=str(places / "link"), container_path="/dev/../dev/linked", permissions="r")

    container = kubelet.started(pod, devices=[device])

    assert kubelet.inside(container, "stat -c '%F %t:%T' /dev/linked") == "character special file 3c:1\n"


def test_a_directory_brings_all_devices_in_it(kubelet: Kubelet, pod: Pod, places: Path) -> None:
    (places / "nodes/note").touch()
    device = pb.Device(host_path=str(places / "nodes"), container_path="/dev/nodes", permissions="r")

    container = kubelet.started(pod, devices=[device])

    assert kubelet.inside(container, "cd /dev/nodes; find . ! -type d | sort") == "./below/three\n./two\n"
    assert rights(kubelet, container, "/dev/nodes/two") == "r"
    assert rights(kubelet, container, "/dev/nodes/below/three") == "r"


def test_a_device_given_twice_has_the_permissions_of_both(kubelet: Kubelet, pod: Pod, places: Path) -> None:
    devices = [pb.Device(host_path=str(places / "one"), container_path="/dev/x", permissions=one) for one in "rw"]

    container = kubelet.started(pod, devices=devices)

    assert rights(kubelet, container, "/dev/x") == "rw"


def test_a_privileged_container_gets_renamed_devices_too(kubelet: Kubelet, places: Path, served: Served) -> None:
    if served.engine.name == OLD:
        pytest.skip("Engine 20.10 wants to give privileged containers capabilities that not every machine has")
    context = pb.LinuxSandboxSecurityContext(privileged=True)
    privileged = kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=context))
    device = pb.Device(host_path=str(places / "one"), container_path="/dev/mine", permissions="rwm")

    container = kubelet.started(privileged, devices=[device], **secured(privileged=True))

    assert rights(kubelet, container, "/dev/mine") == "rw"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "no such file or directory"),
        ("loop", "too many levels of symbolic links"),
        ("file", "is neither a device nor a directory of devices"),
        ("fifo", "is neither a device nor a directory of devices"),
        ("socket", "is neither a device nor a directory of devices"),
        ("empty", "is a directory without a device"),
        ("root", "holds more than 4096 files; name the devices"),
    ],
)
def test_a_path_that_is_no_device_is_refused_at_create(
    kubelet: Kubelet, pod: Pod, places: Path, name: str, reason: str
) -> None:
    devices = [pb.Device(host_path="/dev/null"), pb.Device(host_path=str(places / name), container_path="/dev/x")]

    code, message = refusal(lambda: kubelet.created(pod, devices=devices))

    assert code == Code.FAILED_PRECONDITION
    assert message.startswith(f"config.devices[1].host_path {places / name}")
    assert message.endswith(reason)


BAD: dict[str, tuple[dict[str, str], str]] = {
    "root": ({"host_path": "/"}, "config.devices[0].host_path '/' is the root of the host, not a device"),
    "relative": ({"host_path": "dev/null"}, "config.devices[0].host_path 'dev/null' is not an absolute path"),
    "NUL": ({"host_path": "/dev/null\0"}, "config.devices[0].host_path holds a NUL"),
    "NUL inside": ({"container_path": "/dev/\0"}, "config.devices[0].container_path holds a NUL"),
    "root inside": ({"container_path": "/dev/.."}, "config.devices[0].container_path '/dev/..' is the root"),
    "permissions": ({"permissions": "rwx"}, "config.devices[0].permissions 'rwx' may hold only r, w and m"),
}


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_a_device_is_refused_by_the_name_of_the_field(
    kubelet: Kubelet, pod: Pod, fields: dict[str, str], message: str
) -> None:
    device = pb.Device(**({"host_path": "/dev/null"} | fields))

    code, said = refusal(lambda: kubelet.created(pod, devices=[device]))

    assert code == Code.INVALID_ARGUMENT
    assert said.startswith(message)


# --- CDI --------------------------------------------------------------------------------------------------

KIND = "node.test/thing"


@pytest.fixture
def thing(served: Served, places: Path) -> Iterator[str]:
    """A CDI device with a node and a variable. Its specification appears while the engine runs, as a plugin's does."""
    if served.engine.name == OLD:
        pytest.skip("Engine 20.10 knows no CDI")
    if not served.engine.api.info()["CDISpecDirs"]:
        pytest.skip("CDI is switched off")
    node = {"path": "/dev/thing", "hostPath": str(places / "one")}
    edits = {"env": ["THING=one"], "deviceNodes": [node]}
    content = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [{"name": "one", "containerEdits": edits}]}
    path = Path(served.engine.api.info()["CDISpecDirs"][0], "thing.json")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode(content))
    wait_until(lambda: served.engine.api.info().get("DiscoveredDevices"))
    yield f"{KIND}=one"
    path.unlink()


def cdi(*names: str) -> dict[str, Any]:
    return {"CDI_devices": [pb.CDIDevice(name=name) for name in names]}


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_cdi_device_brings_the_node_and_variable_of_its_specification(
    kubelet: Kubelet, pod: Pod, thing: str, times: int
) -> None:
    container = kubelet.started(pod, "sh", "-c", "echo $THING >/dev/shm/out; sleep 3600", **cdi(*[thing] * times))

    assert kubelet.inside(container, "stat -c '%F %t:%T' /dev/thing") == "character special file 3c:1\n"
    assert rights(kubelet, container, "/dev/thing") == "rw"
    assert wait_until(lambda: kubelet.inside(container, "cat /dev/shm/out")) == "one\n"


def test_a_cdi_device_without_a_specification_is_refused(kubelet: Kubelet, pod: Pod, thing: str) -> None:
    code, message = refusal(lambda: kubelet.created(pod, **cdi(thing, f"{KIND}=two")))

    assert code == Code.FAILED_PRECONDITION
    assert message.startswith("config.CDI_devices[1].name: no specification in ")
    assert message.endswith(f"has '{KIND}=two'")


def test_cdi_on_an_engine_without_it_is_refused_with_the_reason(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    if served.engine.name != OLD:
        pytest.skip("this engine knows CDI")

    code, message = refusal(lambda: kubelet.created(pod, **cdi(f"{KIND}=one")))

    assert code == Code.UNIMPLEMENTED
    assert message == "config.CDI_devices: needs Docker Engine 25.0 (API 1.44); this one speaks 1.41"


def test_cdi_that_is_switched_off_is_refused_with_the_reason(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    if served.engine.name != "26":
        pytest.skip("Engine 20.10 knows no CDI, and since 28.2 it is on by default")

    code, message = refusal(lambda: kubelet.created(pod, **cdi(f"{KIND}=one")))

    assert code == Code.FAILED_PRECONDITION
    assert message == (
        "config.CDI_devices: CDI is switched off in Docker; `features.cdi` in daemon.json switches it on"
    )


@pytest.mark.parametrize(
    "name", ["thing", "node.test/thing", "node.test=one", "/thing=one", "node.test/thing=", "a/b/c=d"]
)
def test_a_malformed_cdi_name_is_refused(kubelet: Kubelet, pod: Pod, name: str) -> None:
    code, message = refusal(lambda: kubelet.created(pod, **cdi(name)))

    assert code == Code.INVALID_ARGUMENT
    assert message == f"config.CDI_devices[0].name {name!r} is not of the form vendor.com/class=device"
