"""Invalid requests, and requests that Docker cannot fulfil, fail with a clear error and leave nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import Cri, container_config, pod_config
from integration.pods.kubelet import Pod, failure, in_context, secured
from shim.api.v1 import api_pb2 as pb

Code = grpc.StatusCode
LONG = "x" * 254


@pytest.fixture(scope="module")
def _untouched(served: Served, pod: Pod) -> Iterator[None]:
    """Assert that all tests of this file together leave nothing; a snapshot for each would take long."""
    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY
    before = served.snapshot()
    yield
    assert served.snapshot() == before


pytestmark = pytest.mark.usefixtures("_untouched")


def refused(call: Callable[[], object], *, field: str, code: grpc.StatusCode = Code.INVALID_ARGUMENT) -> None:
    """Assert that a call fails with `code` and names `field`."""
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    reported, message = failure(refusal)
    assert (reported, field in message) == (code, True), message
    assert message == message.strip()


# --- pods -------------------------------------------------------------------------------------------------


def port(**fields: Any) -> pb.PortMapping:
    return pb.PortMapping(**({"container_port": 80} | fields))


def metadata(**fields: Any) -> dict[str, pb.PodSandboxMetadata]:
    return {"metadata": pb.PodSandboxMetadata(**({"name": "bad", "namespace": "default", "uid": "uid-bad"} | fields))}


POD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("config.metadata is missing", {"metadata": None}),
    ("config.metadata.name is empty", metadata(name="")),
    ("config.metadata.namespace is empty", metadata(namespace="")),
    ("config.metadata.uid is empty", metadata(uid="")),
    ("config.metadata.name has 254 characters", metadata(name=LONG)),
    ("config.metadata.uid has 254 characters", metadata(uid=LONG)),
    ("config.metadata.name '../../etc'", metadata(name="../../etc")),
    ("config.hostname has 254 bytes", {"hostname": LONG}),
    ("config.hostname 'a b'", {"hostname": "a b"}),
    ("config.log_directory 'logs'", {"log_directory": "logs"}),
    ("config.log_directory '/var/log/../../etc'", {"log_directory": "/var/log/../../etc"}),
    ("config.port_mappings[0].container_port 0", {"port_mappings": [port(container_port=0)]}),
    ("config.port_mappings[0].container_port 70000", {"port_mappings": [port(container_port=70000)]}),
    ("config.port_mappings[0].host_port 70000", {"port_mappings": [port(host_port=70000)]}),
    ("config.port_mappings[0].host_port -1", {"port_mappings": [port(host_port=-1)]}),
    ("config.port_mappings[1].host_port 8080", {"port_mappings": [port(host_port=8080), port(host_port=8080)]}),
    ("config.port_mappings[0].host_ip 'here'", {"port_mappings": [port(host_port=8080, host_ip="here")]}),
    ("config.port_mappings[0].protocol", {"port_mappings": [port(protocol=9)]}),
    ("config.dns_config.servers[0]", {"dns_config": pb.DNSConfig(servers=["1.1.1.1\noptions x"])}),
    ("config.dns_config.searches[0]", {"dns_config": pb.DNSConfig(searches=["a b"])}),
    ("config.dns_config.options[0]", {"dns_config": pb.DNSConfig(options=["ndots:5\ndebug"])}),
    ("config.labels and annotations", {"annotations": {"big": "x" * (600 << 10)}}),
    ("namespace_options.network", in_context(namespace_options=pb.NamespaceOption(network=99))),  # type: ignore[arg-type]
    ("namespace_options.network CONTAINER", in_context(namespace_options=pb.NamespaceOption(network=pb.CONTAINER))),
    ("namespace_options.network TARGET", in_context(namespace_options=pb.NamespaceOption(network=pb.TARGET))),
    ("namespace_options.pid TARGET", in_context(namespace_options=pb.NamespaceOption(pid=pb.TARGET))),
    ("namespace_options.ipc CONTAINER", in_context(namespace_options=pb.NamespaceOption(ipc=pb.CONTAINER))),
    ("run_as_group needs run_as_user", in_context(run_as_group=pb.Int64Value(value=1))),
    ("security_context.run_as_user 2147483648", in_context(run_as_user=pb.Int64Value(value=1 << 31))),
    ("security_context.run_as_user -1", in_context(run_as_user=pb.Int64Value(value=-1))),
    ("security_context.supplemental_groups[0] 4294967296", in_context(supplemental_groups=[1 << 32])),
    ("supplemental_groups_policy has the unknown value 7", in_context(supplemental_groups_policy=7)),
    (
        "security_context.run_as_group 2147483648",
        in_context(run_as_user=pb.Int64Value(), run_as_group=pb.Int64Value(value=1 << 31)),
    ),
    ("seccomp.profile_type has the unknown value 9", in_context(seccomp=pb.SecurityProfile(profile_type=9))),  # type: ignore[arg-type]
    ("apparmor.profile_type has the unknown value 9", in_context(apparmor=pb.SecurityProfile(profile_type=9))),  # type: ignore[arg-type]
    ("security_context.seccomp: seccomp profile path 'here'", in_context(seccomp_profile_path="localhost/here")),
    *(
        (f"selinux_options.{part} 'a:b'", in_context(selinux_options=pb.SELinuxOption(**{part: "a:b"})))
        for part in ("user", "role", "type")
    ),
    ("config.linux.cgroup_parent '/a/../../b'", {"linux": pb.LinuxPodSandboxConfig(cgroup_parent="/a/../../b")}),
    ("config.linux.sysctls", {"linux": pb.LinuxPodSandboxConfig(sysctls={"": "1"})}),
]


@pytest.mark.parametrize(("field", "fields"), [pytest.param(*row, id=row[0][:60]) for row in POD_FIELDS])
def test_a_pod_is_refused_by_the_name_of_the_field(cri: Cri, field: str, fields: dict[str, Any]) -> None:
    refused(lambda: cri.run(pod_config("bad", **fields)), field=field)


def test_a_pod_needs_a_configuration(cri: Cri) -> None:
    refused(lambda: cri.runtime.RunPodSandbox(pb.RunPodSandboxRequest()), field="config is missing")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [("kubernetes.io/ingress-bandwidth", "fast"), ("kubernetes.io/egress-bandwidth", "1")],
)
def test_an_invalid_bandwidth_is_refused(cri: Cri, annotation: str, value: str) -> None:
    refused(lambda: cri.run(pod_config("bad", annotations={annotation: value})), field=annotation)


def test_a_user_namespace_without_mappings_is_refused(cri: Cri) -> None:
    options = pb.NamespaceOption(userns_options=pb.UserNamespace(mode=pb.POD))
    config = pod_config("bad", linux=in_context(namespace_options=options)["linux"])

    refused(lambda: cri.run(config), field="userns_options.uids must be one mapping")


# --- containers -------------------------------------------------------------------------------------------


def limited(**fields: Any) -> dict[str, pb.LinuxContainerConfig]:
    return {"linux": pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(**fields))}


def mount(**fields: Any) -> dict[str, list[pb.Mount]]:
    return {"mounts": [pb.Mount(**({"host_path": "/tmp", "container_path": "/data"} | fields))]}


CONTAINER_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("config.metadata is missing", {"metadata": None}),
    ("config.metadata.name is empty", {"metadata": pb.ContainerMetadata()}),
    ("config.metadata.name has 254 characters", {"metadata": pb.ContainerMetadata(name=LONG)}),
    ("config.metadata.name 'POD'", {"metadata": pb.ContainerMetadata(name="POD")}),
    ("config.metadata.name 'a/b'", {"metadata": pb.ContainerMetadata(name="a/b")}),
    ("config.log_path '../../etc/passwd'", {"log_path": "../../etc/passwd"}),
    ("config.log_path '/etc/passwd'", {"log_path": "/etc/passwd"}),
    ("config.working_dir 'here'", {"working_dir": "here"}),
    ("config.mounts[0].host_path 'tmp'", mount(host_path="tmp")),
    ("config.mounts[0].host_path ''", mount(host_path="")),
    ("config.mounts[0].container_path is empty", mount(container_path="")),
    ("config.mounts[0].container_path '/'", mount(container_path="/")),
    ("config.mounts[0].propagation", mount(propagation=9)),
    ("config.stop_signal", {"stop_signal": 999}),
    ("config.envs[0].key ''", {"envs": [pb.KeyValue(value=b"x")]}),
    ("config.envs[0].key 'A=B'", {"envs": [pb.KeyValue(key="A=B", value=b"x")]}),
    ("config.envs[0].value", {"envs": [pb.KeyValue(key="A", value=b"x\0y")]}),
    ("config.devices[0].host_path", {"devices": [pb.Device(host_path="null")]}),
    ("config.devices[0].permissions", {"devices": [pb.Device(host_path="/dev/null", permissions="rx")]}),
    ("config.devices has 10000 entries", {"devices": [pb.Device(host_path="/dev/null")] * 10_000}),
    ("config.CDI_devices has 10000 entries", {"CDI_devices": [pb.CDIDevice(name="a/b=c")] * 10_000}),
    ("seccomp.profile_type has the unknown value 9", secured(seccomp=pb.SecurityProfile(profile_type=9))),  # type: ignore[arg-type]
    ("apparmor.profile_type has the unknown value 9", secured(apparmor=pb.SecurityProfile(profile_type=9))),  # type: ignore[arg-type]
    ("namespace_options.network CONTAINER", secured(namespace_options=pb.NamespaceOption(network=pb.CONTAINER))),
    ("run_as_group needs run_as_user", secured(run_as_group=pb.Int64Value(value=1))),
    ("security_context.run_as_user 2147483648", secured(run_as_user=pb.Int64Value(value=1 << 31))),
    ("supplemental_groups_policy has the unknown value 7", secured(supplemental_groups_policy=7)),
    ("run_as_username must not", secured(run_as_user=pb.Int64Value(value=1), run_as_username="www")),
    ("run_as_username 'www:0'", secured(run_as_username="www:0")),
    ("namespace_options.target_id is empty", secured(namespace_options=pb.NamespaceOption(pid=pb.TARGET))),
    ("namespace_options.ipc TARGET", secured(namespace_options=pb.NamespaceOption(ipc=pb.TARGET))),
    ("security_context.seccomp: seccomp profile path 'here'", secured(seccomp_profile_path="localhost/here")),
    ("security_context.seccomp: unknown profile 'best'", secured(seccomp_profile_path="best")),
    ("security_context.apparmor: unknown profile 'best'", secured(apparmor_profile="best")),
    ("resources.memory_limit_in_bytes -2", limited(memory_limit_in_bytes=-2)),
    ("resources.oom_score_adj 1001", limited(oom_score_adj=1001)),
    (
        "config.windows.security_context is for Windows",
        {"windows": pb.WindowsContainerConfig(security_context=pb.WindowsContainerSecurityContext(host_process=True))},
    ),
    ("'NONE_SUCH' is not a capability", secured(capabilities=pb.Capability(add_capabilities=["NONE_SUCH"]))),
]


def creation(served: Served, pod: Pod, images: Images, **fields: Any) -> Callable[[], str]:
    config = container_config("bad", image=images.busybox, **fields)
    return lambda: served.cri.create(pod.id, config, pod=pod.config)


@pytest.mark.parametrize(("field", "fields"), [pytest.param(*row, id=row[0][:60]) for row in CONTAINER_FIELDS])
def test_a_container_is_refused_by_the_name_of_the_field(
    served: Served, pod: Pod, images: Images, field: str, fields: dict[str, Any]
) -> None:
    refused(creation(served, pod, images, **fields), field=field)


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ("pod_sandbox_id", "pod_sandbox_id is empty"),
        ("config", "config is missing"),
        ("sandbox_config", "sandbox_config is missing"),
    ],
)
def test_create_container_needs_every_part_of_its_request(
    served: Served, pod: Pod, images: Images, missing: str, field: str
) -> None:
    request = pb.CreateContainerRequest(
        pod_sandbox_id=pod.id, config=container_config("bad", image=images.busybox), sandbox_config=pod.config
    )
    request.ClearField(missing)

    refused(lambda: served.cri.runtime.CreateContainer(request), field=field)


def test_a_container_needs_an_image(served: Served, pod: Pod) -> None:
    config = container_config("bad", image="")

    refused(lambda: served.cri.create(pod.id, config, pod=pod.config), field="config.image.image is empty")


CANNOT: list[tuple[grpc.StatusCode, str, dict[str, Any]]] = [
    (Code.FAILED_PRECONDITION, "seccomp profile /none", secured(seccomp_profile_path="localhost//none")),
    (Code.FAILED_PRECONDITION, "AppArmor profile 'none'", secured(apparmor_profile="localhost/none")),
    (
        Code.INVALID_ARGUMENT,
        "config.mounts[0].uidMappings",
        mount(uidMappings=[pb.IDMapping(host_id=1, container_id=0, length=1)]),
    ),
    (Code.INVALID_ARGUMENT, "recursive_read_only needs", mount(recursive_read_only=True)),
]


@pytest.mark.parametrize(("code", "field", "fields"), [pytest.param(*row, id=row[1]) for row in CANNOT])
def test_a_restriction_that_docker_cannot_apply_is_refused(
    served: Served, pod: Pod, images: Images, code: grpc.StatusCode, field: str, fields: dict[str, Any]
) -> None:
    refused(creation(served, pod, images, **fields), field=field, code=code)


# --- the other calls --------------------------------------------------------------------------------------

NEGATIVE = pb.LinuxContainerResources(cpu_shares=-5)
CALLS: list[tuple[str, Callable[[Cri], object]]] = [
    ("timeout -1 is negative", lambda cri: cri.stop_container("0" * 64, timeout=-1)),
    ("timeout -1 is negative", lambda cri: cri.exec("0" * 64, "true", timeout=-1)),
    ("cmd is empty", lambda cri: cri.exec("0" * 64)),
    ("container_id is empty", lambda cri: cri.exec("", "true")),
    ("container_id is empty", lambda cri: cri.start("")),
    ("container_id is empty", lambda cri: cri.stop_container("")),
    ("container_id is empty", lambda cri: cri.remove_container("")),
    ("container_id is empty", lambda cri: cri.container_status("")),
    ("pod_sandbox_id is empty", lambda cri: cri.stop("")),
    ("pod_sandbox_id is empty", lambda cri: cri.remove("")),
    ("pod_sandbox_id is empty", lambda cri: cri.sandbox_status("")),
    ("filter.state.state", lambda cri: cri.sandboxes(state=pb.PodSandboxStateValue(state=7))),  # type: ignore[arg-type]
    ("filter.state.state", lambda cri: cri.containers(state=pb.ContainerStateValue(state=9))),  # type: ignore[arg-type]
    (
        "linux.cpu_shares -5",
        lambda cri: cri.runtime.UpdateContainerResources(
            pb.UpdateContainerResourcesRequest(container_id="0" * 64, linux=NEGATIVE)
        ),
    ),
    (
        "pod_cidr '10.0.0.0/99'",
        lambda cri: cri.runtime.UpdateRuntimeConfig(
            pb.UpdateRuntimeConfigRequest(
                runtime_config=pb.RuntimeConfig(network_config=pb.NetworkConfig(pod_cidr="10.0.0.0/99"))
            )
        ),
    ),
]


@pytest.mark.parametrize(("field", "call"), CALLS, ids=[f"{i}-{row[0]}" for i, row in enumerate(CALLS)])
def test_any_request_is_refused_by_the_name_of_the_field(cri: Cri, field: str, call: Callable[[Cri], object]) -> None:
    refused(lambda: call(cri), field=field)


@pytest.mark.parametrize(
    "call", [Cri.container_status, Cri.sandbox_status, Cri.start], ids=["container", "pod", "start"]
)
def test_an_unknown_id_is_not_found(cri: Cri, call: Callable[[Cri, str], object]) -> None:
    refused(lambda: call(cri, "f" * 64), field="f" * 64, code=Code.NOT_FOUND)
