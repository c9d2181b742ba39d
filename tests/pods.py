"""Ordinary pods and containers for the tests of the domain. The pods use the host's network by default."""

from contextlib import suppress
from functools import partial
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.container.create import create_container
from shim.container.start import start_container
from shim.domain.errors import DeadlineExceeded
from shim.domain.ids import ContainerId, SandboxId
from shim.runtime import Runtime
from shim.sandbox.run import run_pod_sandbox
from shim.view.translate import mark_unknown
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine


def pod_config(name: str = "web", *, network: pb.NamespaceMode = pb.NODE, **fields: Any) -> pb.PodSandboxConfig:
    """Return a pod; `fields` are further fields of PodSandboxConfig."""
    context = pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=network))
    values: dict[str, Any] = {
        "metadata": pb.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="default"),
        "labels": {"app": name},
        "annotations": {"note": f"about {name}"},
        "log_directory": "/var/log/pods/" + name,
        "linux": pb.LinuxPodSandboxConfig(security_context=context),
    }
    return pb.PodSandboxConfig(**(values | fields))


def container_config(name: str = "app", *, image: str | pb.ImageSpec = BUSYBOX, **fields: Any) -> pb.ContainerConfig:
    """Return a container; `fields` are further fields of ContainerConfig."""
    values: dict[str, Any] = {
        "metadata": pb.ContainerMetadata(name=name),
        "image": pb.ImageSpec(image=image) if isinstance(image, str) else image,
        "labels": {"tier": name},
        "log_path": f"{name}.log",
    }
    return pb.ContainerConfig(**(values | fields))


def ready_pod(rt: Runtime, name: str = "web", **fields: Any) -> SandboxId:
    """Run a pod sandbox."""
    return run_pod_sandbox(rt, config=pod_config(name, **fields), runtime_handler="")


def created(rt: Runtime, sandbox: SandboxId, name: str = "app", **fields: Any) -> ContainerId:
    """Create a container."""
    return create_container(
        rt, sandbox_id=sandbox, config=container_config(name, **fields), sandbox_config=pb.PodSandboxConfig()
    )


def running(rt: Runtime, sandbox: SandboxId, name: str = "app", **fields: Any) -> ContainerId:
    """Create and start a container."""
    container = created(rt, sandbox, name, **fields)
    start_container(rt, container_id=container)
    return container


def make_unknown(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    """Make the view report a container as CONTAINER_UNKNOWN: from now on all inspects fail."""
    engine.fail_next("inspect_container", *[DeadlineExceeded("inspect container: not within 5 s")] * 1000)
    with suppress(DeadlineExceeded):
        rt.view.refresh_container(container, fallback=partial(mark_unknown, message="docker does not answer"))
    assert rt.view.container(container).state.phase == pb.CONTAINER_UNKNOWN
