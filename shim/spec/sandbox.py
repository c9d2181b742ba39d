"""The body of Docker's container create for the pause container of a pod. Pure."""

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.shares import MIN_SHARES
from shim.engine.interface import JsonObject
from shim.pod import RESOLV_CONF, host_network
from shim.spec import mounts, seccomp, security
from shim.spec.defaults import CreateContext, base_host_config

OOM_SCORE_ADJ = -998
"""The kernel kills pause last, since every container of the pod would lose its namespaces with it."""

SHM_SIZE = 64 << 20
"""Bytes of /dev/shm, which the containers of the pod share in the IPC namespace."""


def pause_body(config: pb.PodSandboxConfig, ctx: CreateContext, *, profile: str) -> JsonObject:
    """Build the create body; `profile` is the seccomp profile that replaces Docker's, "" to keep Docker's."""
    return {
        "Image": ctx.image_id,
        # Docker refuses a host name together with the host's UTS namespace.
        "Hostname": "" if host_network(config) else config.hostname,
        "Labels": ctx.labels,
        "User": ctx.user.user,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(config, ctx, profile=profile),
    }


def _host_config(config: pb.PodSandboxConfig, ctx: CreateContext, *, profile: str) -> JsonObject:
    context = config.linux.security_context
    return {
        **base_host_config(ctx),
        **_namespaces(config),
        "Sysctls": {_dotted(name): value for name, value in config.linux.sysctls.items()},
        "CpuShares": MIN_SHARES,  # pause sleeps
        "ShmSize": SHM_SIZE,
        "Mounts": [mounts.bind(ctx.resolv_conf, RESOLV_CONF)],
        # A privileged pod only allows its containers to be privileged.
        "Privileged": False,
        "ReadonlyRootfs": context.readonly_rootfs,
        "SecurityOpt": _security_options(context, ctx, profile=profile),
    }


def _dotted(name: str) -> str:
    """Return the name of a sysctl with dots as separators; if a slash comes first, swap slashes and dots.

    For a name with slashes Docker would also set its default, and either might win.
    """
    has_slashes = "/" in name and "." not in name.partition("/")[0]
    return name.translate(str.maketrans("./", "/.")) if has_slashes else name


def _namespaces(config: pb.PodSandboxConfig) -> JsonObject:
    options = config.linux.security_context.namespace_options
    return {
        "NetworkMode": "host" if host_network(config) else "none",
        "UTSMode": "host" if host_network(config) else "",
        "IpcMode": "host" if options.ipc == pb.NODE else "shareable",
        "PidMode": "host" if options.pid == pb.NODE else "",
    }


def _security_options(context: pb.LinuxSandboxSecurityContext, ctx: CreateContext, *, profile: str) -> list[str]:
    # Pause needs nothing that Docker's profile forbids, so it has that profile by default, if Docker has seccomp.
    unasked = "runtime/default" if ctx.defaults.daemon_seccomp else "unconfined"
    return [
        *security.selinux_options(context.selinux_options),
        security.no_new_privileges_option(no_new_privs=True),
        *seccomp.seccomp_options(
            context.seccomp if context.HasField("seccomp") else None,
            deprecated=context.seccomp_profile_path or unasked,
            daemon_profile=ctx.defaults.daemon_seccomp,
            localhost_profile=ctx.seccomp_profile,
            field=seccomp.FIELD,
            builtin=profile,
        ),
        *security.apparmor_options(
            context.apparmor if context.HasField("apparmor") else None,
            deprecated="",
            field="config.linux.security_context.apparmor",
        ),
    ]
