import re
from collections.abc import Callable

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate import run_pod_sandbox
from shim.cri.validate.rules import MAX_LABEL_BYTES
from shim.domain.errors import InvalidArgument
from shim.domain.passwd import MAX_ID

Change = Callable[[pb.PodSandboxConfig], object]


def config() -> pb.PodSandboxConfig:
    """Return a pod like a kubelet's, with a value in every field."""
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name="web-0", namespace="shop", uid="6e5bd4a2-1", attempt=1),
        hostname="web-0",
        log_directory="/var/log/pods/shop_web-0_6e5bd4a2-1",
        dns_config=pb.DNSConfig(servers=["10.96.0.10"], searches=["shop.svc.cluster.local"], options=["ndots:5"]),
        port_mappings=[
            pb.PortMapping(container_port=80, host_port=8080),
            pb.PortMapping(container_port=81),
            pb.PortMapping(container_port=81, host_ip="::1", host_port=8080),
            pb.PortMapping(container_port=53, host_port=8080, protocol=pb.UDP),
        ],
        labels={"io.kubernetes.pod.name": "web-0"},
        annotations={"kubernetes.io/config.source": "api"},
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent="/kubepods.slice/x.slice",
            sysctls={"net.ipv4.ip_unprivileged_port_start": "0"},
            resources=pb.LinuxContainerResources(cpu_quota=-1, memory_limit_in_bytes=1 << 30),
            security_context=pb.LinuxSandboxSecurityContext(
                run_as_user=pb.Int64Value(value=MAX_ID),
                run_as_group=pb.Int64Value(value=0),
                supplemental_groups=[0, MAX_ID],
                namespace_options=pb.NamespaceOption(pid=pb.CONTAINER, userns_options=pb.UserNamespace(mode=pb.NODE)),
            ),
        ),
    )


def context(config: pb.PodSandboxConfig) -> pb.LinuxSandboxSecurityContext:
    return config.linux.security_context


def check(change: Change) -> None:
    changed = config()
    change(changed)
    run_pod_sandbox(pb.RunPodSandboxRequest(config=changed))


GOOD: dict[str, Change] = {
    "as-sent": lambda _: None,
    # Kubelets subtract the overhead even from "no limit". Both values are only recorded.
    "resources": lambda c: c.linux.resources.MergeFrom(pb.LinuxContainerResources(cpu_quota=-25001, cpu_shares=-1)),
    "overhead": lambda c: setattr(c.linux.overhead, "memory_limit_in_bytes", -125829120),
    "least": lambda c: c.CopyFrom(pb.PodSandboxConfig(metadata=c.metadata)),
    "label-of-the-kubelet": lambda c: c.labels.update({"io.kubernetes.container.name": "x"}),
}


@pytest.mark.parametrize("change", GOOD.values(), ids=GOOD)
def test_valid_pods_pass(change: Change) -> None:
    check(change)


BAD: dict[str, tuple[Change, str]] = {
    "no-metadata": (lambda c: c.ClearField("metadata"), "config.metadata is missing"),
    "no-name": (lambda c: c.metadata.ClearField("name"), "config.metadata.name is empty"),
    "no-namespace": (lambda c: c.metadata.ClearField("namespace"), "config.metadata.namespace is empty"),
    "no-uid": (lambda c: c.metadata.ClearField("uid"), "config.metadata.uid is empty"),
    "long-name": (lambda c: setattr(c.metadata, "name", "x" * 254), "config.metadata.name has 254 characters"),
    "odd-name": (lambda c: setattr(c.metadata, "name", "a/b"), "config.metadata.name 'a/b' may hold only"),
    "long-hostname": (lambda c: setattr(c, "hostname", "a" * 65), "config.hostname has 65 bytes"),
    "hostname-of-two-words": (lambda c: setattr(c, "hostname", "a b"), "config.hostname 'a b' is not one word"),
    "hostname-of-two-lines": (lambda c: setattr(c, "hostname", "a\n"), "config.hostname 'a\\n' is not one word"),
    "log-directory-up": (
        lambda c: setattr(c, "log_directory", "/var/log/../../etc"),
        "config.log_directory '/var/log/../../etc' must not hold '..'",
    ),
    "log-directory-relative": (
        lambda c: setattr(c, "log_directory", "logs"),
        "config.log_directory 'logs' is not an absolute path",
    ),
    "log-directory-long": (
        lambda c: setattr(c, "log_directory", "/" + "a" * 256),
        "config.log_directory holds a name of 256 bytes, at most 255 are allowed",
    ),
    "dns-two-lines": (
        lambda c: c.dns_config.servers.append("1.1.1.1\nsearch evil"),
        "config.dns_config.servers[1] '1.1.1.1\\nsearch evil' is not one word",
    ),
    "dns-empty-search": (
        lambda c: c.dns_config.searches.append(""),
        "config.dns_config.searches[1] '' is not one word",
    ),
    "dns-option-of-two-lines": (
        lambda c: c.dns_config.options.append("ndots:1\nnameserver 1.1.1.1"),
        "config.dns_config.options[1] 'ndots:1\\nnameserver 1.1.1.1' has more than one line",
    ),
    "selinux-type": (
        lambda c: setattr(context(c).selinux_options, "type", "a:b"),
        "config.linux.security_context.selinux_options.type 'a:b' may hold only",
    ),
    "windows": (
        lambda c: setattr(c.windows.security_context, "host_process", True),
        "config.windows.security_context is for Windows",
    ),
    "container-port-0": (
        lambda c: c.port_mappings.add(host_port=1),
        "config.port_mappings[4].container_port 0 is not between 1 and 65535",
    ),
    "container-port-70000": (
        lambda c: c.port_mappings.add(container_port=70000),
        "config.port_mappings[4].container_port 70000 is not between",
    ),
    "host-port-70000": (
        lambda c: c.port_mappings.add(container_port=1, host_port=70000),
        "config.port_mappings[4].host_port 70000 is not between 0 and 65535",
    ),
    "host-port-negative": (
        lambda c: c.port_mappings.add(container_port=1, host_port=-1),
        "config.port_mappings[4].host_port -1 is not between",
    ),
    "host-port-twice": (
        lambda c: c.port_mappings.add(container_port=9, host_port=8080),
        "config.port_mappings[4].host_port 8080 is already the host_port of config.port_mappings[0]",
    ),
    "host-port-twice-word-by-word": (
        lambda c: c.port_mappings.add().CopyFrom(c.port_mappings[0]),
        "config.port_mappings[4].host_port 8080 is already the host_port of config.port_mappings[0]",
    ),
    "host-port-twice-in-ipv6": (
        lambda c: c.port_mappings.add(container_port=9, host_port=8080, host_ip="::1"),
        "config.port_mappings[4].host_port 8080 is already the host_port of config.port_mappings[2]",
    ),
    "host-ip": (
        lambda c: c.port_mappings.add(container_port=1, host_port=1, host_ip="localhost"),
        "config.port_mappings[4].host_ip 'localhost' is not an IP address",
    ),
    "protocol": (
        lambda c: c.port_mappings.add(container_port=1, protocol=pb.Protocol.ValueType(7)),
        "config.port_mappings[4].protocol has the unknown value 7",
    ),
    "labels-too-large": (
        lambda c: c.annotations.update({"a": "x" * MAX_LABEL_BYTES}),
        "config.labels and annotations have",
    ),
    "cgroup-parent-up": (
        lambda c: setattr(c.linux, "cgroup_parent", "/kubepods/../x"),
        "config.linux.cgroup_parent '/kubepods/../x' must not hold '..'",
    ),
    "sysctl-empty": (lambda c: c.linux.sysctls.update({"": "1"}), "config.linux.sysctls: '' is not the name"),
    "sysctl-assignment": (
        lambda c: c.linux.sysctls.update({"a=b": "1"}),
        "config.linux.sysctls: 'a=b' is not the name",
    ),
    "uid-large": (
        lambda c: setattr(context(c).run_as_user, "value", MAX_ID + 1),
        "config.linux.security_context.run_as_user 2147483648 is not between 0 and 2147483647",
    ),
    "uid-negative": (
        lambda c: setattr(context(c).run_as_user, "value", -1),
        "config.linux.security_context.run_as_user -1 is not between",
    ),
    "gid-large": (
        lambda c: setattr(context(c).run_as_group, "value", MAX_ID + 1),
        "config.linux.security_context.run_as_group 2147483648 is not between",
    ),
    "supplemental-negative": (
        lambda c: context(c).supplemental_groups.append(-1),
        "config.linux.security_context.supplemental_groups[2] -1 is not between",
    ),
    "group-without-user": (
        lambda c: context(c).ClearField("run_as_user"),
        "config.linux.security_context.run_as_group needs run_as_user",
    ),
    "groups-policy": (
        lambda c: setattr(context(c), "supplemental_groups_policy", 5),
        "config.linux.security_context.supplemental_groups_policy has the unknown value 5",
    ),
    "network-container": (
        lambda c: setattr(context(c).namespace_options, "network", pb.CONTAINER),
        "config.linux.security_context.namespace_options.network CONTAINER is not POD or NODE",
    ),
    "ipc-target": (
        lambda c: setattr(context(c).namespace_options, "ipc", pb.TARGET),
        "config.linux.security_context.namespace_options.ipc TARGET is not POD or NODE",
    ),
    "pid-target": (
        lambda c: setattr(context(c).namespace_options, "pid", pb.TARGET),
        "config.linux.security_context.namespace_options.pid TARGET is not POD or CONTAINER or NODE",
    ),
    "pid-unknown": (
        lambda c: setattr(context(c).namespace_options, "pid", 9),
        "config.linux.security_context.namespace_options.pid has the unknown value 9",
    ),
    "userns-target": (
        lambda c: setattr(context(c).namespace_options.userns_options, "mode", pb.TARGET),
        "config.linux.security_context.namespace_options.userns_options.mode TARGET is not POD or NODE",
    ),
    "seccomp-type": (
        lambda c: setattr(context(c).seccomp, "profile_type", 8),
        "config.linux.security_context.seccomp.profile_type has the unknown value 8",
    ),
    "nul-in-text": (lambda c: setattr(c, "hostname", "a\0b"), "config.hostname holds a NUL"),
    "nul-in-list": (lambda c: c.dns_config.options.append("a\0"), "config.dns_config.options[1] holds a NUL"),
    "nul-in-key": (lambda c: c.labels.update({"a\0": "b"}), "config.labels key holds a NUL"),
    "nul-in-value": (lambda c: c.labels.update({"a": "\0"}), "config.labels['a'] holds a NUL"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_invalid_pods_are_refused(change: Change, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(change)

    assert str(caught.value).startswith(message)


def test_a_request_without_a_configuration_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^config is missing$"):
        run_pod_sandbox(pb.RunPodSandboxRequest())


def with_user_namespace(change: Callable[[pb.NamespaceOption], object]) -> Change:
    """A pod in a user namespace, with a change."""

    def apply(config: pb.PodSandboxConfig) -> None:
        options = context(config).namespace_options
        options.pid = pb.CONTAINER
        options.userns_options.mode = pb.POD
        options.userns_options.uids.add(host_id=65536, length=65536)
        options.userns_options.gids.add(host_id=65536, length=65536)
        change(options)

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o.userns_options.uids.add(host_id=1 << 20, length=1), "userns_options.uids must be one mapping"),
        (lambda o: o.userns_options.ClearField("gids"), "userns_options.gids must be one mapping"),
        (lambda o: setattr(o.userns_options.uids[0], "container_id", 1), "userns_options.uids[0] must map ids from 0"),
        (lambda o: setattr(o.userns_options.gids[0], "length", 0), "userns_options.gids[0] must map ids from 0"),
        (lambda o: setattr(o.userns_options.gids[0], "host_id", 65535 << 16), "userns_options.gids[0] must map ids"),
        (lambda o: setattr(o, "pid", pb.NODE), "pid must not be NODE in a user namespace"),
        (lambda o: setattr(o, "ipc", pb.NODE), "ipc must not be NODE in a user namespace"),
    ],
)
def test_invalid_user_namespaces_are_refused(change: Callable[[pb.NamespaceOption], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        check(with_user_namespace(change))


def test_a_user_namespace_may_have_the_highest_ids_that_the_kernel_maps() -> None:
    """A kubelet chooses from all ranges of 65,536 ids, half of which are above 2^31."""
    highest = (1 << 32) - (2 << 16)
    check(with_user_namespace(lambda o: setattr(o.userns_options.uids[0], "host_id", highest)))


def test_a_user_namespace_may_use_the_host_network() -> None:
    check(with_user_namespace(lambda o: setattr(o, "network", pb.NODE)))
