"""The body of Docker's container create for the pause container of a pod. Pure, but for reading a seccomp profile."""

from dataclasses import dataclass

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.shares import LEAST_SHARES
from shim.domain.ids import ImageId
from shim.engine.interface import JsonObject
from shim.pod import RESOLV_CONF, host_network
from shim.spec import mounts, seccomp, security
from shim.spec.users import DockerUser

OOM_SCORE_ADJ = -998
"""Pause goes last: with it, every container of the pod would lose its namespaces."""

SHM_SIZE = 64 << 20
"""Bytes of /dev/shm, which the containers of the pod share by joining the IPC namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a sandbox's configuration is combined with."""

    image_id: ImageId
    user: DockerUser
    labels: dict[str, str]
    resolv_conf: str
    """The pod's file on the host."""
    cgroup_parent: str
    """In Docker's form."""
    cgroupns_mode: str
    runtime: str
    oom_score_adj: int
    docker_log: JsonObject
    """LogConfig."""
    daemon_seccomp: str
    """See `seccomp_of_daemon`."""
    seccomp_profile: bytes
    """Content of the profile on the node that the configuration names, empty for none."""
    oci_annotations: dict[str, str]
    """What of the annotations goes to the OCI runtime."""


def pause_body(config: pb.PodSandboxConfig, around: Surroundings) -> JsonObject:
    """Build the create body."""
    return {
        "Image": around.image_id,
        # Docker refuses a host name beside the host's UTS namespace.
        "Hostname": "" if host_network(config) else config.hostname,
        "Labels": around.labels,
        "User": around.user.user,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(config, around),
    }


def _host_config(config: pb.PodSandboxConfig, around: Surroundings) -> JsonObject:
    context = config.linux.security_context
    return {
        **_namespaces(config),
        "CgroupnsMode": around.cgroupns_mode,
        "CgroupParent": around.cgroup_parent,
        "Runtime": around.runtime,
        "Sysctls": dict(config.linux.sysctls),
        "OomScoreAdj": around.oom_score_adj,
        "CpuShares": LEAST_SHARES,  # pause sleeps
        "ShmSize": SHM_SIZE,
        "Mounts": [mounts.bind(around.resolv_conf, RESOLV_CONF)],
        # A privileged pod lets its containers be privileged; pause itself has no use for it.
        "Privileged": False,
        "ReadonlyRootfs": context.readonly_rootfs,
        "GroupAdd": list(around.user.group_add),
        "SecurityOpt": _security_options(context, around),
        "Annotations": around.oci_annotations,
        "LogConfig": around.docker_log,
        "RestartPolicy": {"Name": "no"},
        # Also a sign of ours, see `shim.domain.labels`.
        "Init": False,
    }


def _namespaces(config: pb.PodSandboxConfig) -> JsonObject:
    options = config.linux.security_context.namespace_options
    return {
        "NetworkMode": "host" if host_network(config) else "none",
        "UTSMode": "host" if host_network(config) else "",
        "IpcMode": "host" if options.ipc == pb.NODE else "shareable",
        "PidMode": "host" if options.pid == pb.NODE else "",
        # As for the containers: a daemon may have a user namespace for all (userns-remap).
        "UsernsMode": "host",
    }


def _security_options(context: pb.LinuxSandboxSecurityContext, around: Surroundings) -> list[str]:
    # Pause needs nothing that Docker's profile forbids; unasked it has it where there is one.
    unasked = "runtime/default" if around.daemon_seccomp else "unconfined"
    return [
        *security.selinux_options(context.selinux_options),
        security.no_new_privileges_option(no_new_privs=True),
        *seccomp.seccomp_options(
            context.seccomp if context.HasField("seccomp") else None,
            deprecated=context.seccomp_profile_path or unasked,
            daemon_profile=around.daemon_seccomp,
            localhost_profile=around.seccomp_profile,
            field=seccomp.FIELD,
        ),
        *security.apparmor_options(
            context.apparmor if context.HasField("apparmor") else None,
            deprecated="",
            field="config.linux.security_context.apparmor",
        ),
    ]
