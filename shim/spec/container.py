"""The body of Docker's container create, built from the CRI's configuration. Pure.

`shim.cri.validate` has checked the shape of the request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument
from shim.domain.ids import SandboxId
from shim.engine.interface import JsonObject
from shim.hostfs.host_paths import HostSource
from shim.pod import RESOLV_CONF
from shim.spec import mounts, seccomp, security
from shim.spec.capabilities import docker_capabilities
from shim.spec.cdi import docker_device_requests
from shim.spec.defaults import CreateContext, base_host_config
from shim.spec.devices import docker_devices
from shim.spec.resources import create_fields
from shim.spec.signals import docker_signal


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerContext(CreateContext):
    """Inputs of a container's create body besides its configuration."""

    sandbox_id: SandboxId
    privileged_pod: bool
    """Whether containers of the pod may be privileged."""
    host_network: bool
    api_version: tuple[int, int]
    recursive_read_only: bool
    """Whether the OCI runtime can make read-only mounts recursive."""
    host_sources: Mapping[int, HostSource]
    """Host paths of mounts by their index in the configuration."""
    device_sources: Sequence[str]
    """Resolved host paths of devices, in the order of the configuration."""
    image_mounts: Mapping[int, JsonObject]
    """Docker's mounts of images by their index in the configuration, without `Target`."""
    target_id: str
    """Full id of the container whose pid namespace to join; "" for none."""


def container_body(config: pb.ContainerConfig, ctx: ContainerContext) -> JsonObject:
    """Build the create body. Raise InvalidArgument, FailedPrecondition or Unsupported with the name of the field."""
    return {
        "Image": ctx.image_id,
        "Entrypoint": list(config.command) or None,
        "Cmd": list(config.args) or None,
        "Env": environment(config.envs),
        "WorkingDir": config.working_dir,
        "Labels": ctx.labels,
        "User": ctx.user.user,
        "OpenStdin": config.stdin,
        "StdinOnce": config.stdin_once,
        "Tty": config.tty,
        "StopSignal": docker_signal(config.stop_signal),
        # The kubelet probes containers; the image's HEALTHCHECK must not run as well.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(config, ctx),
    }


def environment(envs: Sequence[pb.KeyValue]) -> list[str]:
    """Return `key=value` for each. Raise InvalidArgument for a value that is not UTF-8, which JSON cannot carry."""
    lines = []
    for index, pair in enumerate(envs):
        try:
            lines.append(f"{pair.key}={pair.value.decode()}")
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"config.envs[{index}].value of {pair.key!r} is not UTF-8, which Docker's API cannot carry"
            ) from error
    return lines


def _host_config(config: pb.ContainerConfig, ctx: ContainerContext) -> JsonObject:
    context = config.linux.security_context
    _refuse_what_docker_cannot(context, privileged_pod=ctx.privileged_pod)
    add, drop = docker_capabilities(
        context.capabilities,
        api_version=ctx.api_version,
        field="config.linux.security_context.capabilities",
    )
    return {
        **base_host_config(ctx),
        **_namespaces(context, ctx),
        **create_fields(config.linux.resources),
        "Mounts": _mounts(config, ctx),
        "Devices": docker_devices(config.devices, ctx.device_sources),
        "DeviceRequests": docker_device_requests(config.CDI_devices),
        "Privileged": context.privileged,
        "ReadonlyRootfs": context.readonly_rootfs,
        "CapAdd": add,
        "CapDrop": drop,
        "SecurityOpt": _security_options(context, ctx),
        **_hidden_paths(context),
    }


def _refuse_what_docker_cannot(context: pb.LinuxContainerSecurityContext, *, privileged_pod: bool) -> None:
    if context.privileged and not privileged_pod:
        raise InvalidArgument("config.linux.security_context.privileged: the pod sandbox is not privileged")


def _namespaces(context: pb.LinuxContainerSecurityContext, ctx: ContainerContext) -> JsonObject:
    options, pause = context.namespace_options, f"container:{ctx.sandbox_id}"
    pid = {
        pb.POD: pause,
        pb.CONTAINER: "",
        pb.NODE: "host",
        pb.TARGET: f"container:{ctx.target_id}",
    }
    return {
        # Always the network of pause, which uses the host's for a host-network pod.
        "NetworkMode": pause,
        "IpcMode": "host" if options.ipc == pb.NODE else pause,
        "PidMode": pid[options.pid],
        "UTSMode": "host" if ctx.host_network else "",
        "CgroupnsMode": "host" if context.privileged else ctx.defaults.cgroupns_mode,
    }


def _hidden_paths(context: pb.LinuxContainerSecurityContext) -> JsonObject:
    """Return the requested lists; empty lists for a privileged container.

    Kubelets send lists for every container, and Docker would apply them even to a privileged container. For null, but
    not for [], Docker fills in its defaults.
    """
    return {
        "MaskedPaths": [] if context.privileged else list(context.masked_paths),
        "ReadonlyPaths": [] if context.privileged else list(context.readonly_paths),
    }


def _mounts(config: pb.ContainerConfig, ctx: ContainerContext) -> list[JsonObject]:
    docker = [
        mounts.docker_image_mount(mount, ctx.image_mounts[index])
        if index in ctx.image_mounts
        else mounts.docker_mount(
            mount,
            ctx.host_sources[index],
            field=f"config.mounts[{index}]",
            api_version=ctx.api_version,
            recursive_read_only=ctx.recursive_read_only,
        )
        for index, mount in enumerate(config.mounts)
    ]
    if ctx.resolv_conf and all(mount["Target"] != RESOLV_CONF for mount in docker):
        resolv_conf = mounts.bind(ctx.resolv_conf, RESOLV_CONF)
        docker.append({**resolv_conf, "ReadOnly": config.linux.security_context.readonly_rootfs})
    return docker


def _security_options(context: pb.LinuxContainerSecurityContext, ctx: ContainerContext) -> list[str]:
    options = security.selinux_options(context.selinux_options)
    options.append(security.no_new_privileges_option(no_new_privs=context.no_new_privs))
    if not context.privileged:  # privileged containers have no seccomp, like in other runtimes
        options += seccomp.seccomp_options(
            context.seccomp if context.HasField("seccomp") else None,
            deprecated=context.seccomp_profile_path,
            daemon_profile=ctx.defaults.daemon_seccomp,
            localhost_profile=ctx.seccomp_profile,
            field=seccomp.FIELD,
        )
    options += security.apparmor_options(
        context.apparmor if context.HasField("apparmor") else None,
        deprecated=context.apparmor_profile,
        field="config.linux.security_context.apparmor",
        privileged=context.privileged,
    )
    return options
