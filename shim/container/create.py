"""CreateContainer."""

import posixpath
from contextlib import ExitStack
from dataclasses import replace

import structlog

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import check_path_length
from shim.base.rollback import Rollback
from shim.container.cgroup import check_on_node
from shim.container.find import twins
from shim.container.plugins import finish_with_plugins, hide_from_clients
from shim.container.restoring import CheckpointFiles
from shim.container.teardown import create_under_name, ensure_all_removed, remove_leftover
from shim.container.update import update_others
from shim.domain import labels, names
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from shim.domain.ids import ContainerId, ImageId
from shim.engine.errors import MountNameTooLong, NoCommand
from shim.engine.interface import JsonObject
from shim.hooks.containers import container_is_removed
from shim.image.accounts import accounts_of
from shim.image.find import find_image
from shim.runtime import Runtime
from shim.spec.annotations import container_annotations, container_names, for_sandboxed
from shim.spec.cdi import check_cdi_devices
from shim.spec.container import ContainerContext, container_body
from shim.spec.defaults import host_defaults
from shim.spec.host_calls import device_sources, ensure_host_paths, host_sources, relabel_mounts, seccomp_profile
from shim.spec.image_volumes import FAILED, LONGEST_PATH, docker_image_mounts, image_volumes, with_image_refs
from shim.spec.mounts import mount_options, without_covered
from shim.spec.order import check_takes_orders, runtime_for_changes
from shim.spec.read_only import recursive_read_only_supported
from shim.spec.resources import check_kept
from shim.spec.shim_group import joining_shim_group
from shim.spec.user_namespace import check_container
from shim.spec.users import DockerUser, docker_user, identity
from shim.view.records import ContainerRecord, Record, SandboxRecord, container_key

RESOURCES = "config.linux.resources"

log = structlog.get_logger(__name__)


def create_container(
    rt: Runtime,
    *,
    sandbox_id: str,
    config: pb.ContainerConfig,
    sandbox_config: pb.PodSandboxConfig,
    checkpoint: CheckpointFiles | None = None,
) -> ContainerId:
    """Create a container in a ready sandbox, and add it to the view.

    If the sandbox is stopped or removed meanwhile, fail and leave nothing behind. A stopped container of the same name
    and attempt is removed first. If it runs, raise AlreadyExists.

    `sandbox_config` is the client's current view of the pod. It provides only the log directory, which a kubelet
    setting may change, and whether containers may be privileged. All other settings come from the config of
    RunPodSandbox.

    A container with a `checkpoint` continues from it when it is started.
    """
    sandbox = pod.ready_sandbox(rt, sandbox_id=sandbox_id)
    check_cdi_devices(config.CDI_devices, facts=rt.facts, api_version=rt.engine.api_version)
    check_container(config, pod=sandbox.config)
    name = names.container_name(config.metadata, pod=sandbox.config.metadata)
    ctx = _create_context(
        rt, name=name, sandbox=sandbox, config=config, now=sandbox_config, restored=checkpoint is not None
    )
    body = container_body(config, ctx)
    with rt.locks.container(name), ExitStack() as seen, Rollback(f"create of container {name}") as rollback:
        made: list[str] = []
        rollback.undo("its creation", lambda: ensure_all_removed(rt, made))
        _remove_twins(rt, config, sandbox=sandbox)
        hide_from_clients(rt, container_key(sandbox.id, config.metadata), until=seen)
        created = _make(rt, made, name=name, sandbox=sandbox, config=config, body=body)
        updates = finish_with_plugins(
            rt,
            created,
            sandbox=sandbox,
            mounts=config.mounts,
            runtime=body["HostConfig"]["Runtime"],
            rollback=rollback,
            checkpoint=checkpoint,
        )
        # If a concurrent StopPodSandbox or RemovePodSandbox has not seen this container, this check sees its effect.
        pod.ready_sandbox(rt, sandbox_id=sandbox.id)
        update_others(rt, updates)
        rollback.commit()
    return ContainerId(made[0])


def _remove_twins(rt: Runtime, config: pb.ContainerConfig, *, sandbox: SandboxRecord) -> None:
    for twin in twins(rt, config.metadata, sandbox_id=sandbox.id):
        container_is_removed(rt, twin)
        remove_leftover(rt, twin.id)


def _make(
    rt: Runtime, made: list[str], *, name: str, sandbox: SandboxRecord, config: pb.ContainerConfig, body: JsonObject
) -> Record | None:
    """Create the container in Docker, and return its record. Append its id to `made` before another step can fail."""
    host = body["HostConfig"]
    ensure_host_paths(rt.host_fs, config.mounts, host["Mounts"])
    namespaces = config.linux.security_context.namespace_options
    with joining_shim_group(rt, sandbox, namespaces=namespaces, runtime=host["Runtime"]) as group:
        host["Annotations"].update(group)
        made.append(_create(rt, name=name, body=body))
        created = rt.view.refresh_container(made[0])
    _relabel(rt, made[0], config=config, body=body)
    _check_limits(created, config=config, body=body)
    return created


def _allows_privileged(pod_config: pb.PodSandboxConfig) -> bool:
    """Return whether a pod's containers may be privileged.

    A kubelet computes this for each create from the pod's current containers, because an ephemeral container can make a
    pod privileged after its sandbox was created. The config of a cri-dockerd pod does not record it.
    """
    return pod_config.linux.security_context.privileged


def _create(rt: Runtime, *, name: str, body: JsonObject) -> str:
    host = body["HostConfig"]
    mounts = without_covered(host["Mounts"])
    if len(mounts) < len(host["Mounts"]):
        log.warning("dropped mounts covered by later ones", name=name)
    try:
        return create_under_name(rt, name=name, body={**body, "HostConfig": {**host, "Mounts": mounts}})
    except NoCommand as error:
        raise InvalidArgument(f"config.command and config.args are empty: {error}") from error
    except MountNameTooLong as error:
        longest = f"the container_path of an image volume may have {LONGEST_PATH} characters with this Docker"
        raise FailedPrecondition(f"{FAILED}: config.mounts: {longest}: {error}") from error


def _check_limits(created: Record | None, *, config: pb.ContainerConfig, body: JsonObject) -> None:
    if isinstance(created, ContainerRecord):
        check_kept(created.host, config.linux.resources, body=body["HostConfig"], field=RESOURCES)


def _relabel(rt: Runtime, container_id: str, *, config: pb.ContainerConfig, body: JsonObject) -> None:
    if any(mount.selinux_relabel for mount in config.mounts):
        # The label is empty if SELinux is off or does not confine this container. Then its mounts need no label.
        label = rt.engine.inspect_container(container_id).mount_label
        if label:
            relabel_mounts(rt.host_fs, config.mounts, body["HostConfig"]["Mounts"], label=label)


def _create_context(
    rt: Runtime,
    *,
    name: str,
    sandbox: SandboxRecord,
    config: pb.ContainerConfig,
    now: pb.PodSandboxConfig,
    restored: bool,
) -> ContainerContext:
    """Collect all data for Docker's create body; `now` is the client's current view of the pod."""
    resources, context = config.linux.resources, config.linux.security_context
    check_on_node(rt, resources, field=RESOURCES, sandbox=sandbox)  # refused here, not at start
    defaults = host_defaults(rt, sandbox.config, runtime_handler=sandbox.runtime_handler)
    # As in other runtimes, a pod without a log directory has no logs.
    log_directory = now.log_directory or sandbox.config.log_directory
    log_path = posixpath.join(log_directory, config.log_path) if log_directory and config.log_path else ""
    check_path_length(log_path, field="config.log_path below the log directory of the pod")
    image_id = _image_id(rt, config.image)
    volumes = image_volumes(rt, config.mounts)
    recursive_read_only = _recursive_read_only(rt, defaults.runtime)
    options = mount_options(config.mounts)
    if options:
        check_takes_orders(rt.facts.info(), runtime=defaults.runtime, field="config.mounts: mount_options")
    if rt.nri.may_change or options or restored:
        defaults = replace(defaults, runtime=runtime_for_changes(rt.facts.info(), runtime=defaults.runtime))
    return ContainerContext(
        defaults=defaults,
        sandbox_id=sandbox.id,
        privileged_pod=_allows_privileged(sandbox.config) or _allows_privileged(now),
        host_network=pod.host_network(sandbox.config),
        image_id=image_id,
        user=_user(rt, config=config, image_id=image_id),
        labels=labels.container_labels(
            with_image_refs(config, volumes), name=name, sandbox_id=sandbox.id, log_path=log_path
        ),
        resolv_conf="" if sandbox.legacy else str(pod.resolv_conf_path(rt.config, metadata=sandbox.config.metadata)),
        api_version=rt.engine.api_version,
        oom_score_adj=rt.facts.possible_oom_score_adj(resources.oom_score_adj),
        recursive_read_only=recursive_read_only,
        host_sources=host_sources(rt.host_fs, config.mounts),
        device_sources=device_sources(rt.host_fs, config.devices),
        image_mounts=docker_image_mounts(volumes),
        target_id=_target_id(rt, config=config, sandbox=sandbox),
        seccomp_profile=b"" if context.privileged else seccomp_profile(rt.host_fs, context),
        oci_annotations=_oci_annotations(rt, config, sandbox=sandbox, runtime=defaults.runtime),
    )


def _oci_annotations(
    rt: Runtime, config: pb.ContainerConfig, *, sandbox: SandboxRecord, runtime: str
) -> dict[str, str]:
    image = config.image.user_specified_image or config.image.image
    name = container_names(config, image=image, pod=sandbox.config.metadata, sandbox_id=sandbox.id)
    version = rt.engine.api_version
    return {
        **container_annotations(config, pod=sandbox.config, settings=rt.config, api_version=version),
        **for_sandboxed(name, info=rt.facts.info(), runtime=runtime, api_version=version),
    }


def _image_id(rt: Runtime, image: pb.ImageSpec) -> ImageId:
    record = find_image(rt, image.image)
    if record is None:
        raise NotFound(f"config.image.image: {image.image!r} is not on this node; pull it first")
    return record.id


def _user(rt: Runtime, *, config: pb.ContainerConfig, image_id: ImageId) -> DockerUser:
    image = f"config.image.image {config.image.image!r}"
    return docker_user(identity(config.linux.security_context, accounts_of(rt, image_id=image_id), image=image))


def _recursive_read_only(rt: Runtime, runtime: str) -> bool:
    info = rt.facts.info()
    known = (info.runtimes or {}).get(runtime or info.default_runtime)
    return known is not None and recursive_read_only_supported(known.status)


def _target_id(rt: Runtime, *, config: pb.ContainerConfig, sandbox: SandboxRecord) -> str:
    """Return the full id of the container whose pid namespace to join; "" for none. It must run in the same pod."""
    options = config.linux.security_context.namespace_options
    if options.pid != pb.TARGET:
        return ""
    target = rt.view.container(options.target_id)
    if target.sandbox_id != sandbox.id or not target.state.running:
        field = "config.linux.security_context.namespace_options.target_id"
        raise FailedPrecondition(f"{field}: container {target.id} is not running in this pod")
    return target.id
