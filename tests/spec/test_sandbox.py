from dataclasses import replace
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.ids import ImageId
from shim.domain.labels import CREATED_AS
from shim.spec.defaults import CreateContext, HostDefaults
from shim.spec.sandbox import pause_body
from shim.spec.users import DockerUser

CTX = CreateContext(
    defaults=HostDefaults(
        cgroup_parent="pod1.slice",
        cgroupns_mode="private",
        runtime="runsc",
        docker_log={"Type": "json-file"},
        daemon_seccomp="builtin",
    ),
    image_id=ImageId("sha256:" + "b" * 64),
    user=DockerUser(user="1:2", group_add=("3",)),
    labels={CREATED_AS: "k8s_x"},
    resolv_conf="/state/resolv-conf/1",
    oom_score_adj=-998,
    seccomp_profile=b"",
    oci_annotations={"dev.gvisor.x": "y"},
)


def body(*, sysctls: dict[str, str] | None = None, **context: Any) -> dict[str, Any]:
    linux = pb.LinuxPodSandboxConfig(sysctls=sysctls or {}, security_context=pb.LinuxSandboxSecurityContext(**context))
    return pause_body(pb.PodSandboxConfig(hostname="web-0", linux=linux), CTX, profile="")


def test_the_body_of_an_ordinary_pod() -> None:
    made = body(sysctls={"net.ipv4.ip_unprivileged_port_start": "0"})
    host = made["HostConfig"]
    assert made["Hostname"] == "web-0"
    assert host["Init"] is False
    assert (made["Labels"], host["ContainerIDFile"]) == ({CREATED_AS: "k8s_x"}, "k8s_x")
    assert (host["NetworkMode"], host["IpcMode"], host["PidMode"], host["UTSMode"]) == ("none", "shareable", "", "")
    assert (host["CgroupParent"], host["Runtime"], host["OomScoreAdj"]) == ("pod1.slice", "runsc", -998)
    assert host["Sysctls"] == {"net.ipv4.ip_unprivileged_port_start": "0"}
    assert host["Mounts"] == [{"Type": "bind", "Source": "/state/resolv-conf/1", "Target": "/etc/resolv.conf"}]


@pytest.mark.parametrize(
    ("name", "docker"),
    [
        ("net/ipv4/ip_unprivileged_port_start", "net.ipv4.ip_unprivileged_port_start"),
        ("net/ipv4/conf/eth0.1/arp_filter", "net.ipv4.conf.eth0/1.arp_filter"),
        ("net.ipv4.conf.eth0/1.arp_filter", "net.ipv4.conf.eth0/1.arp_filter"),
        ("fs.mqueue.msg_max", "fs.mqueue.msg_max"),
    ],
)
def test_sysctl_names_get_dots(name: str, docker: str) -> None:
    assert body(sysctls={name: "1"})["HostConfig"]["Sysctls"] == {docker: "1"}


def test_a_pod_in_the_hosts_namespaces() -> None:
    options = pb.NamespaceOption(network=pb.NODE, pid=pb.NODE, ipc=pb.NODE)
    made = body(namespace_options=options)
    host = made["HostConfig"]
    assert (host["NetworkMode"], host["IpcMode"], host["PidMode"], host["UTSMode"]) == ("host", "host", "host", "host")
    assert made["Hostname"] == ""


@pytest.mark.parametrize("mode", [pb.POD, pb.CONTAINER])
def test_pause_has_a_private_pid_namespace(mode: pb.NamespaceMode) -> None:
    assert body(namespace_options=pb.NamespaceOption(pid=mode))["HostConfig"]["PidMode"] == ""


def test_pause_is_never_privileged_and_gains_no_privileges() -> None:
    host = body(privileged=True)["HostConfig"]
    assert host["Privileged"] is False
    assert host["CgroupnsMode"] == "private"
    assert "no-new-privileges=true" in host["SecurityOpt"]


def test_pause_keeps_dockers_seccomp_profile_by_default() -> None:
    unconfined = pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)
    assert "seccomp=unconfined" not in body()["HostConfig"]["SecurityOpt"]
    assert "seccomp=unconfined" in body(seccomp=unconfined)["HostConfig"]["SecurityOpt"]


def test_pause_runs_unconfined_only_where_docker_has_no_seccomp() -> None:
    context = pb.LinuxPodSandboxConfig(security_context=pb.LinuxSandboxSecurityContext())
    without = replace(CTX, defaults=replace(CTX.defaults, daemon_seccomp=""))
    bare = pause_body(pb.PodSandboxConfig(linux=context), without, profile="")
    assert "seccomp=unconfined" in bare["HostConfig"]["SecurityOpt"]


def test_annotations_and_the_hosts_user_namespace_are_passed() -> None:
    host = body()["HostConfig"]
    assert host["Annotations"] == {"dev.gvisor.x": "y"}
    assert host["UsernsMode"] == "host"


def test_users_and_groups_are_passed_to_docker() -> None:
    made = body()
    assert made["User"] == "1:2"
    assert made["HostConfig"]["GroupAdd"] == ["3"]
