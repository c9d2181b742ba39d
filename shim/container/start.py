"""StartContainer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import structlog

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deferred_checks import LATE_SECONDS
from shim.container import restoring
from shim.container.cgroup import ensure_limits
from shim.container.change_lock import apply_when_running, hold_for_change
from shim.container.find import check_no_twin_runs
from shim.container.plugins import tell_stopped
from shim.container.teardown import ensure_killed
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, ShimError, Unavailable
from shim.hooks.containers import container_has_been_started, container_is_started
from shim.logs.drivers import docker_log_path, driver_of
from shim.runtime import Runtime
from shim.view.pending_exits import log_of
from shim.view.records import ContainerRecord

log = structlog.get_logger(__name__)

START_SECONDS = 120.0
"""Timeout of a start, even if the client goes away: an unwanted container can be killed only after Docker's answer."""
KILL_SECONDS = 30.0
"""Timeout of killing a container that must not run."""


def start_container(rt: Runtime, *, container_id: str) -> None:
    """Start a created container.

    Raise FailedPrecondition if it is in another state, if its pod is not ready, or if another running container writes
    the same log. Raise AlreadyExists if another container of the same name and attempt runs. If the OCI runtime cannot
    start the container, raise its error; the container is then EXITED with reason StartError.
    """
    # The lock excludes updates, so that no limit is lost between the start and the writing of limits.
    with hold_for_change(rt, container_id) as record, _hold_locks(rt, record):
        _start(rt, record)


@contextmanager
def _hold_locks(rt: Runtime, record: ContainerRecord) -> Iterator[None]:
    """Inside the block, exclude starts of the same attempt or with the same log, and limit concurrent starts."""
    with rt.locks.start(record.sandbox_id, record.config.metadata), ExitStack() as held:
        if record.log_path:
            held.enter_context(rt.locks.log(record.log_path))
        held.enter_context(rt.locks.start_place(record.sandbox_id))
        yield


def _start(rt: Runtime, record: ContainerRecord) -> None:
    if record.state.phase != pb.CONTAINER_CREATED:
        state = pb.ContainerState.Name(record.state.phase)
        raise FailedPrecondition(f"container {record.id} is {state}, only a created one can be started")
    pod.ready_sandbox(rt, sandbox_id=record.sandbox_id)
    check_no_twin_runs(rt, record)
    rt.limits.check(record.id)
    rt.deferred_checks.forget(_late_start(record.id))
    _follow_log(rt, record)
    try:
        container_is_started(rt, record)
        _start_shielded(rt, record)
    except ShimError:
        tell_stopped(rt, record)
        raise
    container_has_been_started(rt, record)


def _start_shielded(rt: Runtime, record: ContainerRecord) -> None:
    """Start a container even if its client goes away. If this fails, the container is killed."""
    with deadline.shielded(START_SECONDS + restoring.start_seconds(rt, record.id)):
        _start_in_docker(rt, record)
        try:
            started = rt.view.refresh_container(record.id)
            # A concurrent StopPodSandbox may have listed the running containers before this container ran.
            pod.ready_sandbox(rt, sandbox_id=record.sandbox_id)
            rt.stats_cache.container_started()
            if isinstance(started, ContainerRecord):
                ensure_limits(rt, started)
        except ShimError:
            # The container must not run with weaker limits than requested, or in a stopped pod.
            _kill_after_failed_start(rt, record.id)
            raise


def _start_in_docker(rt: Runtime, record: ContainerRecord) -> None:
    try:
        rt.engine.start_container(record.id)
    except (Unavailable, DeadlineExceeded):
        # Docker may have started the container nevertheless, or may start it later.
        _kill_after_failed_start(rt, record.id)
        raise
    except ShimError:
        rt.view.refresh_container(record.id)
        raise


def _follow_log(rt: Runtime, record: ContainerRecord) -> None:
    """Create the log before the first output. Only log a failure, such as a full disk, so that the container starts."""
    if not record.log_path or record.legacy:
        return
    # Docker reports the path of its file after the start or never.
    root = rt.facts.info().docker_root_dir
    docker = docker_log_path(driver_of(record.host.log_config.type), root=root, container_id=record.id)
    problem = rt.logs.follow_now(log_of(record, docker=docker))
    if problem:
        log.warning("container starts without log", container=record.id, path=record.log_path, problem=problem)


def _kill_after_failed_start(rt: Runtime, container_id: str) -> None:
    """Kill a container whose start has failed, now if it runs, otherwise when Docker starts it later."""
    try:
        with deadline.shielded(KILL_SECONDS):
            ensure_killed(rt, container_id)
    except ShimError as error:
        log.error("failed to kill container after failed start", container=container_id, error=error)
    check = partial(_kill_late_start, rt, container_id)
    rt.deferred_checks.add(check, what=_late_start(container_id), seconds=LATE_SECONDS, asks_docker=False)


def _late_start(container_id: str) -> str:
    return f"container {container_id}, whose start has failed"


def _kill_late_start(rt: Runtime, container_id: str) -> bool:
    """Kill a container whose start has failed, if it runs now; return whether it has ended or is gone."""

    def kill(record: ContainerRecord) -> None:
        # A new StartContainer may have withdrawn the check while this thread waited for the lock.
        if rt.deferred_checks.is_pending(_late_start(container_id)):
            ensure_killed(rt, record.id)
            log.warning("killed container started late after failed start", container=record.id)

    return apply_when_running(rt, container_id, apply=kill)
