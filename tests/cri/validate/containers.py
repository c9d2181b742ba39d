"""The configuration of a container like a kubelet's, and changes to it."""

from collections.abc import Callable
from typing import TypeVar

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate import create_container
from shim.domain.passwd import MAX_ID

M = TypeVar("M")
Change = Callable[[pb.CreateContainerRequest], object]


def all_of(*changes: Callable[[M], object]) -> Callable[[M], object]:
    """Combine several changes."""
    return lambda of: [change(of) for change in changes]


def request() -> pb.CreateContainerRequest:
    """Return a container like a kubelet's, with a value in every field."""
    return pb.CreateContainerRequest(
        pod_sandbox_id="5a",
        sandbox_config=pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="web-0", namespace="shop", uid="6e5bd4a2-1"),
            log_directory="/var/log/pods/shop_web-0_6e5bd4a2-1",
        ),
        config=pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="app", attempt=3),
            image=pb.ImageSpec(image="sha256:1"),
            command=["sh", "-c"],
            args=[""],
            working_dir="/srv",
            envs=[pb.KeyValue(key="A", value=b"\xff="), pb.KeyValue(key="A")],
            mounts=[
                pb.Mount(container_path="/data", host_path="/var/lib/x"),
                pb.Mount(container_path="/data/in", host_path="/var/lib/x"),
                pb.Mount(
                    container_path="/model", image=pb.ImageSpec(image="model"), image_sub_path="a/b", readonly=True
                ),
            ],
            devices=[pb.Device(host_path="/dev/null", container_path="/dev/n", permissions="rw")],
            labels={"io.kubernetes.container.name": "app"},
            annotations={"io.kubernetes.container.hash": "1"},
            log_path="app/3.log",
            linux=pb.LinuxContainerConfig(
                resources=pb.LinuxContainerResources(
                    cpu_period=100000, cpu_quota=-1, memory_limit_in_bytes=-1, oom_score_adj=1000
                ),
                security_context=pb.LinuxContainerSecurityContext(
                    run_as_user=pb.Int64Value(value=0),
                    run_as_group=pb.Int64Value(value=MAX_ID),
                    namespace_options=pb.NamespaceOption(pid=pb.TARGET, target_id="c1"),
                ),
            ),
            CDI_devices=[pb.CDIDevice(name="nvidia.com/gpu=0")],
            stop_signal=pb.SIGNAL_SIGRTMINPLUS1,
        ),
    )


def check(change: Change) -> None:
    """Validate the container after a change."""
    changed = request()
    change(changed)
    create_container(changed)
