"""RunPodSandbox."""

import time
from collections.abc import Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline, deferred_checks
from shim.base.rollback import Rollback
from shim.checkpoint.model import SandboxCheckpoint
from shim.container.teardown import create_under_name
from shim.domain import labels, names
from shim.domain.errors import AlreadyExists, ShimError
from shim.domain.ids import ImageId, SandboxId
from shim.hooks.pods import pod_has_run
from shim.image.accounts import accounts_of
from shim.image.ensure import ensure_image
from shim.runtime import Runtime
from shim.sandbox import dns, network
from shim.sandbox.bring_up import bring_up
from shim.sandbox.find import sandboxes
from shim.sandbox.pause_exit import remove_pause
from shim.sandbox.remove import remove_record
from shim.spec.annotations import for_sandboxed, sandbox_annotations, sandbox_names
from shim.spec.defaults import CreateContext, host_defaults
from shim.spec.host_calls import seccomp_profile
from shim.spec.order import order_container
from shim.spec.pause_seccomp import pause_profile
from shim.spec.sandbox import OOM_SCORE_ADJ, pause_body
from shim.spec.shim_group import new_shim_group
from shim.spec.users import DockerUser, asks_for_identity, docker_user, identity
from shim.view.records import sandbox_key

log = structlog.get_logger(__name__)


def run_pod_sandbox(
    rt: Runtime, *, config: pb.PodSandboxConfig, runtime_handler: str, must_be_new: bool = False
) -> SandboxId:
    """Create a pod's sandbox: pause container, resolv.conf, pinned network namespace, CNI ADD. Return its id.

    If a ready sandbox of the same attempt exists, an earlier client has given up: return its id, or raise AlreadyExists
    if the sandbox `must_be_new`. If a sandbox of the attempt exists that is not ready, remove it first. On an error all
    steps are undone in reverse. If an undo fails too, the sandbox stays listed as not ready; the kubelet removes it.
    """
    name = names.sandbox_name(config.metadata)
    with rt.locks.sandbox(name):
        for earlier in [record for record in sandboxes(rt) if names.sandbox_name(record.config.metadata) == name]:
            if pod.is_ready(rt.checkpoints, earlier):
                if must_be_new:
                    raise AlreadyExists(f"config.metadata: pod sandbox {earlier.id} has this name, uid and attempt")
                log.info("pod sandbox already exists", sandbox=earlier.id)
                return earlier.id
            remove_record(rt, earlier)
        key = sandbox_key(config.metadata)
        with (
            rt.unseen.making(key, hidden=lambda: rt.nri.active),
            rt.view.defer_events(key),
            Rollback(f"run of pod sandbox {name}") as rollback,
        ):
            sandbox_id = _run(rt, config=config, runtime_handler=runtime_handler, rollback=rollback)
            rollback.commit()
    return sandbox_id


def _run(rt: Runtime, *, config: pb.PodSandboxConfig, runtime_handler: str, rollback: Rollback) -> SandboxId:
    # Strategy: write the data for DEL to the checkpoint before ADD, and mark the sandbox ready last. So after a crash
    # at any point the sandbox is listed as not ready, and StopPodSandbox and RemovePodSandbox can clean it up. The
    # network is chosen first, so that a node without a network fails at once.
    chosen = None if pod.host_network(config) else rt.cni.networks.chosen()
    sandbox_id = _create_pause(rt, config=config, runtime_handler=runtime_handler, rollback=rollback)
    checkpoint = SandboxCheckpoint(
        sandbox_id=sandbox_id,
        config=labels.config_as_dict(config),
        runtime_handler=runtime_handler,
        created_at=time.time_ns(),
        network=network.network_intent(rt, config=config, sandbox_id=sandbox_id, chosen=chosen),
    )
    rollback.undo("its checkpoint", lambda: rt.checkpoints.delete(sandbox_id))
    rollback.undo("its entry in the cni cache", lambda: network.forget_intent(rt, checkpoint))
    checkpoint = bring_up(rt, checkpoint, config=config, rollback=rollback)
    record = rt.view.sandbox(sandbox_id)
    pod_has_run(rt, record, rollback=rollback)
    rt.checkpoints.put(replace(checkpoint, ready=True, pause_started_at=record.state.started_at))
    return sandbox_id


def _create_pause(rt: Runtime, *, config: pb.PodSandboxConfig, runtime_handler: str, rollback: Rollback) -> SandboxId:
    image = ensure_image(rt, reference=rt.config.pod_infra_container_image)
    defaults = host_defaults(rt, config, runtime_handler=runtime_handler)
    security, info, api_version = config.linux.security_context, rt.facts.info(), rt.engine.api_version
    ctx = CreateContext(
        image_id=image.id,
        user=_user(rt, config=config, image_id=image.id),
        labels=labels.sandbox_labels(config, runtime_handler=runtime_handler),
        resolv_conf=str(pod.resolv_conf_path(rt.config, metadata=config.metadata)),
        defaults=defaults,
        oom_score_adj=rt.facts.possible_oom_score_adj(OOM_SCORE_ADJ),
        seccomp_profile=seccomp_profile(rt.host_fs, security),
        oci_annotations={
            **sandbox_annotations(config, settings=rt.config, api_version=api_version),
            **for_sandboxed(
                sandbox_names(config.metadata), info=info, runtime=defaults.runtime, api_version=api_version
            ),
            **new_shim_group(
                info, api_version=api_version, namespaces=security.namespace_options, runtime=defaults.runtime
            ),
        },
    )
    profile = pause_profile(image, info=info, api_version=api_version, runtime=defaults.runtime)
    body = pause_body(config, ctx, profile=profile)
    rollback.undo(
        "its resolv.conf", lambda: dns.remove_resolv_conf(pod.resolv_conf_path(rt.config, metadata=config.metadata))
    )
    dns.ensure_pod_resolv_conf(rt.config, config)
    made: list[str] = []
    rollback.undo("its pause container", lambda: _remove_pause(rt, metadata=config.metadata, made=made))
    made.append(create_under_name(rt, name=names.sandbox_name(config.metadata), body=body))
    order_container(rt.facts.info(), made[0], runtime=defaults.runtime, pod=config)
    return SandboxId(made[0])


def _remove_pause(rt: Runtime, *, metadata: pb.PodSandboxMetadata, made: Sequence[str]) -> None:
    """Remove the pause container of a failed sandbox, if it was created.

    If Docker does not confirm the removal, it may still remove the container later. Then no RemovePodSandbox follows,
    so a deferred check removes the resolv.conf.
    """
    try:
        for sandbox_id in made:
            remove_pause(rt, sandbox_id)
    except ShimError:
        what = f"the resolv.conf of pod sandbox {names.sandbox_name(metadata)}"
        rt.deferred_checks.add(
            partial(_clear_resolv_conf, rt, metadata), what=what, seconds=deferred_checks.LATE_SECONDS
        )
        raise


def _clear_resolv_conf(rt: Runtime, metadata: pb.PodSandboxMetadata) -> bool:
    """Remove the resolv.conf of a sandbox that is gone.

    Return False while a sandbox of this name exists, because its RemovePodSandbox removes the file.
    """
    name = names.sandbox_name(metadata)
    with deadline.bound(deferred_checks.CHECK_SECONDS), rt.locks.sandbox(name):
        if any(names.sandbox_name(record.config.metadata) == name for record in sandboxes(rt)):
            return False
        dns.remove_resolv_conf(pod.resolv_conf_path(rt.config, metadata=metadata))
        return True


def _user(rt: Runtime, *, config: pb.PodSandboxConfig, image_id: ImageId) -> DockerUser:
    """Return the user of the pause process. For the image's default, the usual case, no file of the image is read."""
    context = config.linux.security_context
    if not asks_for_identity(context):
        return DockerUser()
    image = f"the pause image {rt.config.pod_infra_container_image}"
    return docker_user(identity(context, accounts_of(rt, image_id=image_id), image=image))
