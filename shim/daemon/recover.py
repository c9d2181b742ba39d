"""Recovery after a start: finishes what an earlier server left unfinished.

Most of it needs no code here. Unfinished sandboxes, and checkpoints without a pause container, are listed as not ready,
so the kubelet's own Stop and Remove clean up after a crash.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import structlog

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deferred_checks import LATE_SECONDS
from shim.cni.cache import own_attachments
from shim.cni.orphans import end_orphans
from shim.container import restoring
from shim.container.cgroup import ensure_limits, needs_writing, wanted_resources
from shim.container.change_lock import apply_when_running, hold_for_change
from shim.container.orphaned_execs import end_orphaned_execs
from shim.daemon.background import background
from shim.domain.errors import Cancelled, DeadlineExceeded, NotFound, ShimError, Unavailable
from shim.domain.ids import ContainerId
from shim.image import rootfs
from shim.oci import orders
from shim.oci.user_namespaces import orders_directory
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.find import sandboxes
from shim.sandbox.network import docker_socket
from shim.sandbox.rebuild import recover_checkpoint
from shim.view.records import ContainerRecord, SandboxRecord

RETRY_SECONDS = 1.0
"""Seconds between two attempts of a step while Docker is unavailable."""

log = structlog.get_logger(__name__)


def recover_pods(rt: Runtime) -> None:
    """Recover what pods depend on, after Docker has listed them and before any RPC about them is answered."""
    for step in (end_orphaned_plugins, recover_checkpoints):
        run_step(rt, step)


@contextmanager
def recovering(rt: Runtime) -> Iterator[None]:
    """Run the other steps in a background thread."""
    with background(partial(_recover_rest, rt), name="recover"):
        yield


def _recover_rest(rt: Runtime, stopping: threading.Event) -> None:
    for step in (restore_limits, end_execs, remove_orphaned_files, remove_leftover_containers):
        while not run_step(rt, step):
            if stopping.wait(RETRY_SECONDS):
                return


def run_step(rt: Runtime, step: Callable[[Runtime], object]) -> bool:
    """Run a step; return False if Docker is unavailable."""
    try:
        step(rt)
    except (Unavailable, Cancelled, DeadlineExceeded) as error:
        log.debug("recovery postponed: Docker is unavailable", error=error)
        return False
    except Exception:
        # The failure concerns single pods; serve the others all the same.
        log.exception("recovery step failed", step=step.__name__)
    return True


def recover_checkpoints(rt: Runtime) -> None:
    """Rebuild missing checkpoints of pods, so that the pods keep working and their addresses can be released."""
    # Not `sandboxes()`: the view answers RPCs only after this step. Until then no request creates or removes a pod.
    for record in rt.view.records().values():
        if not isinstance(record, SandboxRecord) or rt.checkpoints.get(record.id) is not None:
            continue
        try:
            _recover_checkpoint(rt, record)
        except ShimError as error:
            log.error("failed to recover checkpoint of pod sandbox", sandbox=record.id, error=error)


def _recover_checkpoint(rt: Runtime, record: SandboxRecord) -> None:
    checkpoint = recover_checkpoint(rt, record)
    if checkpoint is None:
        return
    rt.checkpoints.put(checkpoint)
    log.info("rebuilt checkpoint of pod sandbox", sandbox=record.id, network=checkpoint.network is not None)
    if not record.legacy and not pod.resolv_conf_path(rt.config, metadata=record.config.metadata).exists():
        # The file was lost together with the checkpoint; without it no further container could be created in the pod.
        dns.ensure_pod_resolv_conf(rt.config, record.config)
        dns.label_pod_resolv_conf(rt.config, record)


def restore_limits(rt: Runtime) -> None:
    """Write the limits that Docker has no field for to running containers: the server may have crashed before it did.

    A container with such limits that has not started is watched, because the crashed server may have asked Docker to
    start it.
    """
    for record in rt.view.containers():
        if record.legacy or record.state.phase == pb.CONTAINER_EXITED:
            continue
        if record.state.pid:
            with suppress(NotFound), hold_for_change(rt, record.id) as current:
                _restore_limits(rt, current)
        elif needs_writing(wanted_resources(rt, record)):
            check = partial(_restore_late_limits, rt, record.id)
            rt.deferred_checks.add(check, what=f"limits of container {record.id}", seconds=math.inf, asks_docker=False)


def _restore_late_limits(rt: Runtime, container_id: str) -> bool:
    """Write the limits of a container if it runs; return True once that is done or can never happen."""
    return apply_when_running(rt, container_id, apply=partial(_restore_limits, rt))


def _restore_limits(rt: Runtime, record: ContainerRecord) -> None:
    try:
        ensure_limits(rt, record)
    except ShimError as error:
        log.error("failed to write limits of running container", container=record.id, error=error)


def end_orphaned_plugins(rt: Runtime) -> None:
    """Kill the CNI plugins that an earlier server left running, before this server runs any.

    A pod is ready only after its ADD has succeeded and until its DEL begins. A ready pod's plugin processes were left
    running on purpose, such as the DHCP client of its address.
    """
    known = {checkpoint.sandbox_id: checkpoint for checkpoint in rt.checkpoints.all()}
    unfinished = {checkpoint.sandbox_id for checkpoint in known.values() if not checkpoint.ready}
    try:
        lost = own_attachments(rt.config.cni_cache_dir, docker=docker_socket(rt.config), excluding=known.keys())
        unfinished |= {attachment.container_id for attachment in lost if attachment.result is None}
    except ShimError as error:
        log.error("failed to find CNI plugins of pods without checkpoint", error=error)
    end_orphans(unfinished, host_fs=rt.host_fs)


def end_execs(rt: Runtime) -> None:
    """End the execs that an earlier server left in containers.

    A container that cannot be inspected now is checked again later.
    """
    for record in rt.view.containers():
        if record.legacy or not record.state.may_run:
            continue
        try:
            end_orphaned_execs(rt, record.id)
        except ShimError as error:
            deadline.current().check("end execs of an earlier server")
            log.debug("cannot inspect execs of container yet", container=record.id, error=error)
            check = partial(_end_execs_late, rt, record.id)
            rt.deferred_checks.add(check, what=f"execs of container {record.id}", seconds=LATE_SECONDS)


def _end_execs_late(rt: Runtime, container_id: ContainerId) -> bool:
    end_orphaned_execs(rt, container_id)
    return True


def remove_orphaned_files(rt: Runtime) -> None:
    """Remove files that an earlier server kept for containers that are gone: no Remove will name them.

    These are limits and orders of containers that were removed externally, and the resolv.conf of a pod whose container
    Docker had not created before the crash. This server's own files stay, because its requests may be in flight.
    """
    rt.limits.keep_only({record.id for record in rt.view.containers()})
    if (directory := orders_directory(rt.facts.info())) is not None:
        known_ids = {record.id for record in rt.view.records().values()}
        orders.keep_only(directory, known_ids, before=rt.server.started_at)
    restoring.keep_only(rt, {record.id for record in rt.view.containers()}, before=rt.server.started_at)
    known = {pod.resolv_conf_path(rt.config, metadata=record.config.metadata) for record in sandboxes(rt)}
    for path in pod.resolv_conf_directory(rt.config).glob("*"):
        if path in known:
            continue
        try:
            if path.stat().st_mtime < rt.server.started_at:
                path.unlink()
                log.info("removed orphaned resolv.conf", file=str(path))
        except FileNotFoundError:
            continue  # removed by a RemovePodSandbox
        except OSError as error:
            log.error("failed to remove orphaned resolv.conf", file=str(path), error=error)


def remove_leftover_containers(rt: Runtime) -> None:
    """Remove short-lived containers that an earlier server created and did not remove before it crashed."""
    rootfs.remove_leftovers(rt)
