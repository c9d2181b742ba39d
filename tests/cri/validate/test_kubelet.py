"""Requests of a kubelet pass: for each rule, the widest value that Kubernetes' API server and kubelet accept.

Comments name the functions of Kubernetes' validation (`pkg/apis/core/validation`, `pkg/kubelet`).
"""

import string
from collections.abc import Callable
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.keys import MAX_PIDS
from shim.cri import validate
from shim.cri.validate.rules import MAX_FORWARDED_PORTS, MAX_LABEL_BYTES, MAX_PROCESS_BYTES
from shim.domain.passwd import MAX_ID
from tests.cri.validate import containers, test_pod
from tests.cri.validate.containers import all_of

ANY_TEXT = "".join(map(chr, range(1, 256))) + "\u2028\U0001f433"
PRINTABLE = "".join(char for char in string.printable if char.isprintable())


def selinux(level: str) -> pb.SELinuxOption:
    return pb.SELinuxOption(user="system_u", role="system_r", type="container_t.1-x", level=level)


PODS: dict[str, Callable[[pb.PodSandboxConfig], object]] = {
    # GetNodenameForKernel: setHostnameAsFQDN with a subdomain, if the kubelet has no clusterDomain.
    "hostname with a dot at its end": lambda c: setattr(c, "hostname", "web-0.sub.shop.svc."),
    "hostname with a domain that is not checked": lambda c: setattr(c, "hostname", "web-0.sub.shop.svc.my_net.-x."),
    "hostname of 64 bytes": lambda c: setattr(c, "hostname", "a" * 64),
    "no hostname": lambda c: c.ClearField("hostname"),
    "longest name": lambda c: setattr(c.metadata, "name", "a" * 253),
    "uid of a static pod": lambda c: setattr(c.metadata, "uid", "0123456789abcdef" * 2),
    # ValidateAnnotations checks only the keys, and the total of 256 KiB.
    "annotations of any text": lambda c: c.annotations.update({"example.com/any": ANY_TEXT + "\0"}),
    "annotations of 256 KiB": lambda c: c.annotations.update({"a": "x" * (256 << 10)}),
    "labels and annotations of our bound": all_of(
        lambda c: c.labels.clear(),
        lambda c: c.annotations.clear(),
        lambda c: c.annotations.update({"a": "x" * (MAX_LABEL_BYTES - 1)}),
    ),
    "labels under keys of the server": lambda c: c.labels.update(
        dict.fromkeys(("io.kubernetes.docker.type", "io.kubernetes.sandbox.id", "io.pydockershim.config"), "x")
    ),
    "label of no text": lambda c: c.labels.update({"app.kubernetes.io/part-of": ""}),
    # IsValidSysctlName allows slashes for dots, which an interface with a dot in its name needs.
    "sysctls": lambda c: c.linux.sysctls.update(
        {
            "net/ipv4/conf/eth0.1/arp_filter": "1",
            "net.ipv4.conf.enp3s0/200.forwarding": "",
            "kernel.shm_rmid_forced": "0",
        }
    ),
    # validatePodDNSConfig: an option may be any text.
    "dns options": lambda c: c.dns_config.options.extend(("ndots:", "edns0 trust-ad", " ", "é", "a=b:c")),
    "dns searches": lambda c: c.dns_config.searches.extend((".", "example.com.", "_sip._tcp.example.com", "a" * 253)),
    # Servers also come from the node's resolv.conf, which is not checked.
    "dns servers": lambda c: c.dns_config.servers.extend(
        ("::1", "fe80::1%eth0", "010.0.0.1", "::ffff:10.0.0.1", "dns")
    ),
    "no dns": lambda c: c.ClearField("dns_config"),
    # validateContainerPorts does not check hostIP, which has no meaning without a mapped port.
    "host address of any text on the network of the host": all_of(
        lambda c: setattr(test_pod.context(c).namespace_options, "network", pb.NODE),
        lambda c: c.port_mappings.add(container_port=9, host_port=9, host_ip="localhost"),
    ),
    "host address of any text without a host port": lambda c: c.port_mappings.add(
        container_port=9, host_ip="localhost"
    ),
    "ports": lambda c: c.port_mappings.extend(
        pb.PortMapping(protocol=protocol, container_port=65535, host_port=65535)
        for protocol in (pb.TCP, pb.UDP, pb.SCTP)
    ),
    # AccumulateUniqueHostPorts compares addresses as text.
    "host port in other spellings of the address": lambda c: c.port_mappings.extend(
        pb.PortMapping(container_port=number, host_port=8080, host_ip=host_ip)
        for number, host_ip in enumerate(("0.0.0.0", "::", "0:0::1", "fe80::1%eth0"), 90)
    ),
    "host port twice on the network of the host": all_of(
        lambda c: setattr(test_pod.context(c).namespace_options, "network", pb.NODE),
        lambda c: c.port_mappings.add(container_port=80, host_port=8080),
    ),
    "groups": lambda c: test_pod.context(c).supplemental_groups.extend(range(1000)),
    "selinux": lambda c: test_pod.context(c).selinux_options.CopyFrom(selinux("s0-s15:c0.c1023")),
    "cgroup parent": lambda c: setattr(c.linux, "cgroup_parent", "/kubepods.slice/kubepods-pod5e1a_77.slice"),
    "least": lambda c: c.CopyFrom(pb.PodSandboxConfig(metadata=c.metadata)),
}


@pytest.mark.parametrize("change", PODS.values(), ids=PODS)
def test_a_kubelet_can_send_the_pod(change: Callable[[pb.PodSandboxConfig], object]) -> None:
    test_pod.check(change)


def context(request: pb.CreateContainerRequest) -> pb.LinuxContainerSecurityContext:
    return request.config.linux.security_context


CONTAINERS: dict[str, containers.Change] = {
    # IsRelaxedEnvVarName: any printable ASCII character except `=`.
    "name of a variable": lambda r: r.config.envs.add(key=PRINTABLE.replace("=", "")),
    "names of variables": lambda r: r.config.envs.extend(
        pb.KeyValue(key=key) for key in (" ", "1", "-", ".", "..", "#", "a b", "$", '"', "\\")
    ),
    "value of a variable": lambda r: r.config.envs.add(key="A", value=ANY_TEXT.encode()),
    "a variable twice": lambda r: r.config.envs.extend([pb.KeyValue(key="A", value=b"1")] * 2),
    "as large as a process can be": all_of(
        lambda r: r.config.ClearField("envs"),
        lambda r: r.config.ClearField("args"),
        lambda r: r.config.ClearField("command"),
        lambda r: r.config.args.append("x" * (MAX_PROCESS_BYTES - 1)),
    ),
    "words of a command": lambda r: r.config.args.extend(["", ANY_TEXT]),
    "no command": all_of(lambda r: r.config.ClearField("command"), lambda r: r.config.ClearField("args")),
    "working directory": lambda r: setattr(r.config, "working_dir", f"/a/../{ANY_TEXT}"),
    "longest name": lambda r: setattr(r.config.metadata, "name", "a" * 63),
    "log of a restart": lambda r: setattr(r.config, "log_path", f"{'a' * 63}/4294967295.log"),
    # newContainerAnnotations: the hook as JSON, the path of the termination message unchanged.
    "annotations of any text": lambda r: r.config.annotations.update(
        {"io.kubernetes.container.terminationMessagePath": ANY_TEXT + "\0"}
    ),
    # ValidateVolumeMounts only requires a path.
    "path of a mount": lambda r: r.config.mounts.add(
        container_path=f"/a:b,c=d/../{ANY_TEXT}", host_path=f"/{ANY_TEXT}"
    ),
    "relative path of a mount": lambda r: r.config.mounts.add(container_path="data:ro", host_path="/x"),
    "two mounts in one place": lambda r: r.config.mounts.add(container_path="/data/", host_path="/y"),
    "propagation": lambda r: r.config.mounts.extend(
        pb.Mount(container_path=f"/{mode}", host_path="/x", propagation=mode)
        for mode in (pb.PROPAGATION_PRIVATE, pb.PROPAGATION_HOST_TO_CONTAINER, pb.PROPAGATION_BIDIRECTIONAL)
    ),
    # validateMountPropagation does not know what kind of volume it is.
    "propagation of an image": lambda r: setattr(r.config.mounts[2], "propagation", pb.PROPAGATION_HOST_TO_CONTAINER),
    "sub-path of an image": lambda r: setattr(r.config.mounts[2], "image_sub_path", "./a//..b/c:d "),
    # The answer of a device plugin is passed on unchanged.
    "device with a relative path": lambda r: r.config.devices.add(host_path="/dev/x", container_path="dev/y"),
    "device with rights in any order": lambda r: r.config.devices.add(host_path="/dev/x", permissions="mrwr"),
    "device without rights": lambda r: r.config.devices.add(host_path="/dev/x"),
    "device under a directory with a colon": lambda r: r.config.devices.add(host_path="/dev/bus:1/x y"),
    "CDI name": lambda r: r.config.CDI_devices.add(name="k8s.gpu_x-1.example.com/c.l_a-ss=0a5b-gpu-0:1.2_3"),
    "privileged": lambda r: setattr(context(r), "privileged", True),
    "groups": lambda r: context(r).supplemental_groups.extend((0, MAX_ID)),
    # determineEffectiveSecurityContext: the user is the image's, by number or by name, the group the pod's.
    "group beside the name of a user": all_of(
        lambda r: context(r).ClearField("run_as_user"),
        lambda r: setattr(context(r), "run_as_username", "www-data$ é"),
    ),
    "selinux": lambda r: context(r).selinux_options.CopyFrom(selinux("SystemLow-SystemHigh")),
    "ephemeral container in the pid namespace of another": lambda r: context(r).namespace_options.CopyFrom(
        pb.NamespaceOption(network=pb.NODE, pid=pb.TARGET, ipc=pb.NODE, target_id="c1")
    ),
    "signal of a name that docker has not": lambda r: setattr(r.config, "stop_signal", pb.SIGNAL_SIGRTMAXMINUS14),
}


@pytest.mark.parametrize("change", CONTAINERS.values(), ids=CONTAINERS)
def test_a_kubelet_can_send_the_container(change: containers.Change) -> None:
    containers.check(change)


LIMITS: dict[str, dict[str, Any]] = {
    # MilliCPUToShares, MilliCPUToQuota
    "least": {"cpu_shares": 2, "cpu_quota": 1000, "cpu_period": 1000, "memory_limit_in_bytes": 1},
    "most": {"cpu_shares": 262_144, "cpu_quota": 2**63 - 1, "cpu_period": 1_000_000},
    "exclusive CPUs": {"cpu_quota": -1, "cpu_period": 100_000, "cpuset_cpus": "0-3,8,10-8191", "cpuset_mems": "0-1023"},
    "no limits": {"cpu_shares": 0, "cpu_quota": 0, "memory_limit_in_bytes": 0, "memory_swap_limit_in_bytes": 0},
    "memory": {"memory_limit_in_bytes": 2**63 - 1, "memory_swap_limit_in_bytes": 2**63 - 1},
    "scores": {"oom_score_adj": -1000},
    # GetHugepageLimitsFromResources: all sizes of the node, most with 0.
    "huge pages": {
        "hugepage_limits": [
            pb.HugepageLimit(page_size=size, limit=limit)
            for size, limit in (("64KB", 0), ("2MB", 2**64 - 1), ("32MB", 0), ("1GB", 1), ("16GB", 0))
        ]
    },
    "files of version 2": {
        "unified": {
            "memory.min": "0",
            "memory.low": str(2**63 - 1),
            "memory.high": "max",
            "memory.oom.group": "1",
            "memory.swap.max": "0",
            "pids.max": str(MAX_PIDS),
        }
    },
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_kubelet_can_send_the_limits(limits: dict[str, Any]) -> None:
    linux = pb.LinuxContainerResources(**limits)

    validate.update_container_resources(pb.UpdateContainerResourcesRequest(container_id="c", linux=linux))
    containers.check(lambda r: r.config.linux.resources.CopyFrom(linux))


def test_a_kubelet_can_send_the_requests() -> None:
    # terminationGracePeriodSeconds has no upper bound.
    validate.stop_container(pb.StopContainerRequest(container_id="c", timeout=2**63 - 1))
    validate.exec_sync(pb.ExecSyncRequest(container_id="c", cmd=["a", "", ANY_TEXT], timeout=2**31 - 1))
    validate.exec_sync(pb.ExecSyncRequest(container_id="c", cmd=["x" * (MAX_PROCESS_BYTES - 1)]))
    validate.exec_(pb.ExecRequest(container_id="c", cmd=[" "], stdin=True, tty=True, stdout=True))
    validate.attach(pb.AttachRequest(container_id="c", stdin=True))
    validate.port_forward(pb.PortForwardRequest(pod_sandbox_id="p", port=[1, 65535] * (MAX_FORWARDED_PORTS // 2)))
