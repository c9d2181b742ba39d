from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument, Unsupported
from shim.domain.ids import ImageId, SandboxId
from shim.domain.labels import CREATED_AS
from shim.hostfs.host_paths import HostSource
from shim.spec.container import ContainerContext, container_body, environment
from shim.spec.defaults import HostDefaults
from shim.spec.users import DockerUser

PAUSE = "container:" + "a" * 64
DEFAULTS: dict[str, Any] = {
    "cgroup_parent": "/kubepods/pod1",
    "cgroupns_mode": "private",
    "runtime": "",
    "docker_log": {"Type": "json-file"},
    "daemon_seccomp": "builtin",
}


def create_context(**changes: Any) -> ContainerContext:
    values: dict[str, Any] = {
        "sandbox_id": SandboxId("a" * 64),
        "privileged_pod": False,
        "host_network": False,
        "image_id": ImageId("sha256:" + "b" * 64),
        "user": DockerUser(user="0:7", group_add=("8", "9")),
        "labels": {CREATED_AS: "k8s_x"},
        "resolv_conf": "/state/resolv-conf/1",
        "api_version": (1, 44),
        "oom_score_adj": 0,
        "recursive_read_only": False,
        "host_sources": {},
        "device_sources": [],
        "image_mounts": {},
        "target_id": "",
        "seccomp_profile": b"",
        "oci_annotations": {},
    }
    defaults = {name: changes.pop(name) for name in DEFAULTS.keys() & changes.keys()}
    return ContainerContext(defaults=HostDefaults(**(DEFAULTS | defaults)), **(values | changes))


def config(**context: Any) -> pb.ContainerConfig:
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="c"),
        linux=pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(**context)),
    )


def host_config(made: pb.ContainerConfig, **changes: Any) -> dict[str, Any]:
    sources = {index: HostSource(mount.host_path) for index, mount in enumerate(made.mounts)}
    devices = [device.host_path for device in made.devices]
    values = {"host_sources": sources, "device_sources": devices, **changes}
    found: dict[str, Any] = container_body(made, create_context(**values))["HostConfig"]
    return found


def test_process_fields_are_passed_to_docker() -> None:
    made = pb.ContainerConfig(
        command=["/bin/sh"],
        args=["-c", "true"],
        working_dir="/tmp",
        envs=[pb.KeyValue(key="K", value="snö=1".encode())],
        stdin=True,
        stdin_once=True,
        tty=True,
        stop_signal=pb.SIGNAL_SIGRTMINPLUS1,
    )
    body = container_body(made, create_context())
    assert body["Image"] == "sha256:" + "b" * 64
    assert (body["Entrypoint"], body["Cmd"]) == (["/bin/sh"], ["-c", "true"])
    assert body["Env"] == ["K=snö=1"]
    assert body["WorkingDir"] == "/tmp"
    assert (body["OpenStdin"], body["StdinOnce"], body["Tty"]) == (True, True, True)
    assert body["StopSignal"] == "SIGRTMIN+1"
    assert body["Healthcheck"] == {"Test": ["NONE"]}


def test_unset_fields_keep_the_images_defaults() -> None:
    body = container_body(pb.ContainerConfig(), create_context())
    assert body["Entrypoint"] is None
    assert body["Cmd"] is None
    assert body["StopSignal"] == ""


def test_values_that_are_not_utf8_are_refused_with_index_and_key() -> None:
    with pytest.raises(InvalidArgument, match=r"config\.envs\[1\]\.value of 'B'"):
        environment([pb.KeyValue(key="A", value=b"fine"), pb.KeyValue(key="B", value=b"\xff")])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (pb.NamespaceOption(), {"NetworkMode": PAUSE, "IpcMode": PAUSE, "PidMode": PAUSE}),
        (pb.NamespaceOption(pid=pb.CONTAINER), {"PidMode": ""}),
        (pb.NamespaceOption(pid=pb.NODE, ipc=pb.NODE), {"PidMode": "host", "IpcMode": "host"}),
        (pb.NamespaceOption(pid=pb.TARGET, target_id="t"), {"PidMode": "container:" + "t" * 64}),
        # Only the pod's network counts, since pause uses the host's then.
        (pb.NamespaceOption(network=pb.NODE), {"NetworkMode": PAUSE}),
    ],
    ids=["pod", "own pid", "host", "target", "host network"],
)
def test_namespace_modes_are_converted(options: pb.NamespaceOption, expected: dict[str, str]) -> None:
    host = host_config(config(namespace_options=options), target_id="t" * 64)
    assert expected.items() <= host.items()


def test_host_network_shares_the_host_name() -> None:
    assert host_config(config(), host_network=True)["UTSMode"] == "host"
    assert host_config(config())["UTSMode"] == ""


def test_users_and_groups_are_passed_to_docker() -> None:
    assert container_body(config(), create_context())["User"] == "0:7"
    assert host_config(config())["GroupAdd"] == ["8", "9"]


def test_no_path_is_masked_unless_requested() -> None:
    host = host_config(config())
    assert host["MaskedPaths"] == []
    assert host["ReadonlyPaths"] == []
    host = host_config(config(masked_paths=["/proc/kcore"], readonly_paths=["/proc/sys"]))
    assert (host["MaskedPaths"], host["ReadonlyPaths"]) == (["/proc/kcore"], ["/proc/sys"])


def test_no_path_of_a_privileged_container_is_masked_or_read_only() -> None:
    """Kubelets send lists for every container."""
    made = config(privileged=True, masked_paths=["/proc/kcore"], readonly_paths=["/proc/sys"])
    host = host_config(made, privileged_pod=True)
    assert (host["MaskedPaths"], host["ReadonlyPaths"]) == ([], [])


def test_no_new_privileges_is_always_explicit() -> None:
    assert "no-new-privileges=false" in host_config(config())["SecurityOpt"]
    assert "no-new-privileges=true" in host_config(config(no_new_privs=True))["SecurityOpt"]


def test_a_privileged_container_needs_a_privileged_pod() -> None:
    with pytest.raises(InvalidArgument, match=r"security_context\.privileged"):
        container_body(config(privileged=True), create_context())
    host = host_config(config(privileged=True), privileged_pod=True)
    assert host["Privileged"] is True
    assert host["CgroupnsMode"] == "host"
    assert host_config(config())["CgroupnsMode"] == "private"


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"apparmor": pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)},
        {"apparmor": pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)},
        {"apparmor_profile": "runtime/default"},
        {"apparmor_profile": "unconfined"},
        {"seccomp": pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref="/none")},
    ],
    ids=["nothing", "default", "unconfined", "old default", "old unconfined", "seccomp"],
)
def test_a_privileged_container_is_not_confined(context: dict[str, Any]) -> None:
    host = host_config(config(privileged=True, **context), privileged_pod=True)
    assert host["SecurityOpt"] == ["no-new-privileges=false"]


@pytest.mark.parametrize(
    "context",
    [
        {"apparmor": pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref="localhost/mine")},
        {"apparmor_profile": "localhost/mine"},
    ],
    ids=["new", "old"],
)
def test_a_privileged_container_with_an_apparmor_profile_of_the_node_is_refused(context: dict[str, Any]) -> None:
    """Docker would run it without the profile."""
    with pytest.raises(Unsupported, match=r"security_context\.apparmor: .* 'mine'"):
        host_config(config(privileged=True, **context), privileged_pod=True)


def test_capabilities_are_passed_to_docker() -> None:
    made = config(capabilities=pb.Capability(add_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"]))
    host = host_config(made)
    assert (host["CapAdd"], host["CapDrop"]) == (["NET_ADMIN"], ["ALL"])


def test_annotations_are_passed_to_the_oci_runtime() -> None:
    assert host_config(config())["Annotations"] == {}
    assert host_config(config(), oci_annotations={"dev.gvisor.x": "y"})["Annotations"] == {"dev.gvisor.x": "y"}


def test_pods_never_use_the_daemons_user_namespace() -> None:
    assert host_config(config())["UsernsMode"] == "host"


def test_the_pods_resolv_conf_is_mounted_unless_the_container_brings_one() -> None:
    assert host_config(config())["Mounts"] == [
        {"Type": "bind", "Source": "/state/resolv-conf/1", "Target": "/etc/resolv.conf", "ReadOnly": False}
    ]
    own = pb.ContainerConfig(mounts=[pb.Mount(host_path="/etc/hostname", container_path="/etc/resolv.conf")])
    assert [mount["Source"] for mount in host_config(own)["Mounts"]] == ["/etc/hostname"]
    own.mounts[0].container_path = "//etc/./resolv.conf"
    assert [mount["Source"] for mount in host_config(own)["Mounts"]] == ["/etc/hostname"]
    assert host_config(config(), resolv_conf="")["Mounts"] == []


def test_image_mounts_keep_their_order_among_other_mounts() -> None:
    made = pb.ContainerConfig(
        mounts=[
            pb.Mount(container_path="a/../model", image=pb.ImageSpec(image="x"), readonly=True),
            pb.Mount(container_path="/b", host_path="/etc/hostname"),
        ]
    )
    image = {"Type": "image", "Source": "sha256:1", "ReadOnly": True}
    mounts = host_config(made, image_mounts={0: image}, resolv_conf="")["Mounts"]
    assert mounts[0] == {**image, "Target": "/model"}
    assert (mounts[1]["Source"], mounts[1]["Target"]) == ("/etc/hostname", "/b")


def test_docker_keeps_a_bounded_log_and_never_restarts() -> None:
    host = host_config(config())
    assert host["LogConfig"] == {"Type": "json-file"}
    assert host["RestartPolicy"] == {"Name": "no"}
    assert host["Init"] is False


def test_cdi_devices_become_device_requests() -> None:
    made = pb.ContainerConfig(CDI_devices=[pb.CDIDevice(name="v.com/gpu=0")])
    assert host_config(made)["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["v.com/gpu=0"]}]


def test_devices_are_passed_to_docker() -> None:
    made = pb.ContainerConfig(devices=[pb.Device(host_path="/dev/null", container_path="/dev/n", permissions="r")])
    assert host_config(made)["Devices"] == [
        {"PathOnHost": "/dev/null", "PathInContainer": "/dev/n", "CgroupPermissions": "r"}
    ]
