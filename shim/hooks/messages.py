"""The NRI messages of pods and containers.

Only the message of a new container has arguments and environment: they may hold secrets, so the server keeps no copy.
"""

from shim import pod
from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.engine.answers import ContainerInspect
from shim.hooks.resources import of_cri
from shim.runtime import Runtime
from shim.spec.defaults import docker_cgroup_parent
from shim.spec.resources import known_resources
from shim.view.records import ContainerRecord, SandboxRecord

_STATES = {
    pb.CONTAINER_CREATED: nri.CONTAINER_CREATED,
    pb.CONTAINER_RUNNING: nri.CONTAINER_RUNNING,
    pb.CONTAINER_EXITED: nri.CONTAINER_STOPPED,
    pb.CONTAINER_UNKNOWN: nri.CONTAINER_UNKNOWN,
}
_PROFILES = {
    pb.SecurityProfile.RuntimeDefault: nri.SecurityProfile.RUNTIME_DEFAULT,
    pb.SecurityProfile.Unconfined: nri.SecurityProfile.UNCONFINED,
    pb.SecurityProfile.Localhost: nri.SecurityProfile.LOCALHOST,
}
_PROPAGATION = {
    pb.PROPAGATION_PRIVATE: "rprivate",
    pb.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    pb.PROPAGATION_BIDIRECTIONAL: "rshared",
}


def pod_message(rt: Runtime, record: SandboxRecord) -> nri.PodSandbox:
    """Return the message of a pod sandbox."""
    config, checkpoint = record.config, rt.checkpoints.get(record.id)
    return nri.PodSandbox(
        id=record.id,
        name=config.metadata.name,
        uid=config.metadata.uid,
        namespace=config.metadata.namespace,
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=record.runtime_handler,
        pid=record.state.pid,
        ips=pod.addresses(checkpoint),
        linux=nri.LinuxPodSandbox(
            cgroup_parent=config.linux.cgroup_parent,
            cgroups_path=cgroups_path(rt, config, container_id=record.id),
            namespaces=_namespaces_of_pod(
                record, netns=checkpoint.network.netns if checkpoint and checkpoint.network else ""
            ),
            pod_overhead=of_cri(config.linux.overhead),
            pod_resources=of_cri(config.linux.resources),
        ),
    )


def container_message(
    rt: Runtime, record: ContainerRecord, *, sandbox: SandboxRecord | None, inspect: ContainerInspect | None = None
) -> nri.Container:
    """Return the message of a container. It has arguments and environment only if `inspect` is given."""
    config, state, context = record.config, record.state, record.config.linux.security_context
    resources = known_resources(record.host, rt.limits.get(record.id) or config.linux.resources)
    message = nri.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox_id,
        name=config.metadata.name,
        state=_STATES[state.phase],
        labels=config.labels,
        annotations=config.annotations,
        mounts=[_mount(mount) for mount in config.mounts],
        linux=nri.LinuxContainer(
            namespaces=[] if sandbox is None else _namespaces(config, sandbox),
            devices=[_device(device) for device in config.devices],
            resources=of_cri(resources),
            oom_score_adj=nri.OptionalInt(value=record.host.oom_score_adj),
            cgroups_path="" if sandbox is None else cgroups_path(rt, sandbox.config, container_id=record.id),
            seccomp_profile=_seccomp(context),
        ),
        CDI_devices=[nri.CDIDevice(name=device.name) for device in config.CDI_devices],
        user=_user(record),
        image=nri.Image(name=record.image_spec.image, config_digest=record.image_id),
        pid=state.pid,
        created_at=state.created_at,
        started_at=state.started_at,
        finished_at=state.finished_at,
        exit_code=state.exit_code,
        status_reason=state.reason,
        status_message=state.message,
    )
    if inspect is not None:
        message.args.extend([inspect.path, *(inspect.args or ())] if inspect.path else ())
        message.env.extend(inspect.config.env or ())
    return message


def cgroups_path(rt: Runtime, config: pb.PodSandboxConfig, *, container_id: str) -> str:
    """Return the cgroup that Docker chooses for a container, in the form of the OCI runtime specification."""
    parent = docker_cgroup_parent(config, systemd=rt.facts.systemd_cgroups)
    if rt.facts.systemd_cgroups:
        return f"{parent or 'system.slice'}:docker:{container_id}"
    return f"{(parent or '/docker').rstrip('/')}/{container_id}"


def _mount(mount: pb.Mount) -> nri.Mount:
    options = ["rbind", _PROPAGATION[mount.propagation], "ro" if mount.readonly else "rw"]
    source = mount.host_path or mount.image.image
    return nri.Mount(destination=mount.container_path, type="bind", source=source, options=options)


def _device(device: pb.Device) -> nri.LinuxDevice:
    return nri.LinuxDevice(path=device.container_path or device.host_path)


def _seccomp(context: pb.LinuxContainerSecurityContext) -> nri.SecurityProfile | None:
    if context.privileged or not context.HasField("seccomp"):
        return None
    kind = _PROFILES[context.seccomp.profile_type]
    return nri.SecurityProfile(profile_type=kind, localhost_ref=context.seccomp.localhost_ref)


def _user(record: ContainerRecord) -> nri.User | None:
    uid, _, gid = record.user.partition(":")
    if not uid.isdecimal():
        return None
    groups = [int(group) for group in record.host.group_add or () if group.isdecimal()]
    return nri.User(uid=int(uid), gid=int(gid) if gid.isdecimal() else 0, additional_gids=groups)


def _namespaces_of_pod(record: SandboxRecord, *, netns: str) -> list[nri.LinuxNamespace]:
    options = record.config.linux.security_context.namespace_options
    found = [nri.LinuxNamespace(type="mount"), nri.LinuxNamespace(type="pid")]
    if options.network != pb.NODE:
        path = netns or _path(record, "net")
        found += [nri.LinuxNamespace(type="network", path=path), nri.LinuxNamespace(type="uts")]
    if options.ipc != pb.NODE:
        found.append(nri.LinuxNamespace(type="ipc"))
    return found


def _namespaces(config: pb.ContainerConfig, sandbox: SandboxRecord) -> list[nri.LinuxNamespace]:
    options = config.linux.security_context.namespace_options
    of_pod = sandbox.config.linux.security_context.namespace_options
    found = [nri.LinuxNamespace(type="mount")]
    if options.pid == pb.CONTAINER:
        found.append(nri.LinuxNamespace(type="pid"))
    elif options.pid == pb.POD:
        found.append(nri.LinuxNamespace(type="pid", path=_path(sandbox, "pid")))
    if of_pod.network != pb.NODE:
        found += [
            nri.LinuxNamespace(type="network", path=_path(sandbox, "net")),
            nri.LinuxNamespace(type="uts", path=_path(sandbox, "uts")),
        ]
    if options.ipc != pb.NODE:
        found.append(nri.LinuxNamespace(type="ipc", path=_path(sandbox, "ipc")))
    return found


def _path(sandbox: SandboxRecord, kind: str) -> str:
    return f"/proc/{sandbox.state.pid}/ns/{kind}" if sandbox.state.pid else ""
