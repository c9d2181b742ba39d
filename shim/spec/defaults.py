"""Settings that every container gets from the node and from its pod, including the pause container."""

from dataclasses import dataclass

from shim.api.v1 import api_pb2 as pb
from shim.config.model import Config, DockerLogDriver
from shim.dockerd.facts import EngineFacts
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.domain.errors import InvalidArgument
from shim.domain.ids import ImageId
from shim.domain.labels import ownership_fields
from shim.engine.answers import EngineInfo
from shim.engine.interface import JsonObject
from shim.logs.drivers import FORMATS
from shim.runtime import Runtime
from shim.spec.seccomp import seccomp_of_daemon
from shim.spec.user_namespace import runtime_of_pod
from shim.spec.users import DockerUser


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDefaults:
    """Settings that all containers of a pod share in Docker's create body."""

    cgroup_parent: str
    """In Docker's form."""
    cgroupns_mode: str
    """For containers that are not privileged."""
    runtime: str
    """The OCI runtime; "" for Docker's default."""
    docker_log: JsonObject
    """LogConfig."""
    daemon_seccomp: str
    """See `seccomp_of_daemon`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateContext:
    """Inputs of the create body of any container besides its configuration."""

    defaults: HostDefaults
    image_id: ImageId
    user: DockerUser
    labels: dict[str, str]
    resolv_conf: str
    """Path of the pod's file on the host; "" for a cri-dockerd pod."""
    oom_score_adj: int
    seccomp_profile: bytes
    """Content of the profile on the node that the configuration names; b"" for none."""
    oci_annotations: dict[str, str]
    """Annotations for the OCI runtime."""


def host_defaults(rt: Runtime, config: pb.PodSandboxConfig, *, runtime_handler: str) -> HostDefaults:
    """Return the defaults for the containers of a pod. Raise InvalidArgument for an unknown runtime handler."""
    info = rt.facts.info()
    return HostDefaults(
        cgroup_parent=docker_cgroup_parent(config, systemd=rt.facts.systemd_cgroups),
        cgroupns_mode=_cgroupns_mode(info),
        runtime=runtime_of_pod(
            rt,
            config.linux.security_context.namespace_options,
            runtime=_docker_runtime(rt.facts, handler=runtime_handler),
        ),
        docker_log=docker_log(rt.config, driver=rt.config.docker_log_driver),
        daemon_seccomp=seccomp_of_daemon(info.security_options or ()),
    )


def base_host_config(ctx: CreateContext) -> JsonObject:
    """Build the part of HostConfig that is the same for every container."""
    return {
        "CgroupParent": ctx.defaults.cgroup_parent,
        "CgroupnsMode": ctx.defaults.cgroupns_mode,
        "Runtime": ctx.defaults.runtime,
        "OomScoreAdj": ctx.oom_score_adj,
        # Includes the host's user namespace, even if the daemon has another for containers (userns-remap).
        **ownership_fields(ctx.labels),
        "GroupAdd": list(ctx.user.group_add),
        "Annotations": ctx.oci_annotations,
        "LogConfig": ctx.defaults.docker_log,
        "RestartPolicy": {"Name": "no"},
    }


def docker_cgroup_parent(config: pb.PodSandboxConfig, *, systemd: bool) -> str:
    """Convert the kubelet's cgroup parent; with systemd, to the name of the slice, which implies its path."""
    path = config.linux.cgroup_parent
    return path.rstrip("/").rpartition("/")[2] if systemd else path


def _cgroupns_mode(info: EngineInfo) -> str:
    """Return the CgroupnsMode for containers that are not privileged: on cgroup v1 the host's, like in other runtimes.

    Always explicit, since the daemon may have another default (`default-cgroupns-mode`).
    """
    return "private" if info.cgroup_version == "2" else "host"


def docker_log(config: Config, *, driver: DockerLogDriver) -> JsonObject:
    """Return the LogConfig of a container: files of bounded size, which the server copies to the CRI log.

    Every option is explicit, since Docker takes missing options from its configuration (`log-opts` of daemon.json).
    Compressed files would have to be unpacked, non-blocking mode drops output, and labels or other additions to each
    record may be larger than the output.
    """
    options = {
        "max-size": config.docker_log_max_size,
        "max-file": str(config.docker_log_max_file),
        "compress": "false",
        "mode": "blocking",
        **dict.fromkeys(FORMATS[driver].additions, ""),
    }
    return {"Type": driver, "Config": options}


def with_other_log_driver(config: Config, body: JsonObject) -> JsonObject:
    """Return a create body with another log driver, so that Docker merges no `log-opts` into it.

    Docker merges them if the container has the driver of its configuration. `max-buffer-size` among them cannot be
    overridden: with `mode: blocking`, Docker refuses any value.
    """
    driver = next(driver for driver in FORMATS if driver != config.docker_log_driver)
    return {**body, "HostConfig": {**body["HostConfig"], "LogConfig": docker_log(config, driver=driver)}}


def _docker_runtime(facts: EngineFacts, *, handler: str) -> str:
    """Return the OCI runtime of a runtime handler; "" for Docker's default.

    Raise InvalidArgument for an unknown handler, with the known runtimes.
    """
    if handler in {"", "docker"}:
        return ""
    runtimes = facts.runtimes(wanted=handler)
    if handler not in runtimes or handler == ORDERED_RUNTIME:
        known = ", ".join(sorted(runtimes.keys() - {ORDERED_RUNTIME}))
        raise InvalidArgument(f"runtime_handler: Docker has no runtime {handler!r}; it has {known}")
    return handler
