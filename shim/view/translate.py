"""Translates Docker's answers into records. Pure.

The configuration of a container never changes. So it is parsed from the labels once, and then copied from the previous
record. Parsing its JSON after each event would cost more than everything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from google.protobuf.json_format import ParseError

from shim.api.v1 import api_pb2 as pb
from shim.base.times import NEVER, SECOND, ns_from_rfc3339
from shim.dockerd.runc import exec_root, shim_group
from shim.domain import labels, references
from shim.domain.errors import InvalidArgument
from shim.domain.ids import ContainerId, ImageId, SandboxId
from shim.engine.answers import (
    ContainerInspect,
    ContainerSettings,
    ContainerSummary,
    HostSettings,
    ImageInspect,
    ImageSummary,
    MountPoint,
)
from shim.engine.failures import plain_start_error
from shim.view.cri_dockerd_pods import container_config, legacy_name, sandbox_config
from shim.view.records import ContainerRecord, ContainerState, ImageRecord, Record, SandboxRecord

COMPLETED, ERROR, OOM_KILLED, START_ERROR = "Completed", "Error", "OOMKilled", "StartError"
EXIT_START_ERROR = 128
"""The exit code that other CRI runtimes report for a container that never ran."""
EXIT_SIGKILL = 137
EXIT_UNSEEN = 255
"""The exit code if Docker missed the exit, or if the container was removed before Docker reported an exit code."""
UNSEEN = "Unknown"
"""The reason of a missed exit, as in containerd."""

_PHASES = {
    "created": pb.CONTAINER_CREATED,
    "running": pb.CONTAINER_RUNNING,
    # The CRI lacks both states. A paused container holds its resources, and a restarting container is about to run.
    "paused": pb.CONTAINER_RUNNING,
    "restarting": pb.CONTAINER_RUNNING,
    "removing": pb.CONTAINER_EXITED,
    "exited": pb.CONTAINER_EXITED,
    "dead": pb.CONTAINER_EXITED,
}
_NO_RESTARTS = frozenset({"", "no"})

EMPTY_STATE = ContainerState(
    phase=pb.CONTAINER_UNKNOWN,
    pid=0,
    exit_code=0,
    reason="",
    message="",
    created_at=NEVER,
    started_at=NEVER,
    finished_at=NEVER,
)


def record_from_inspect(inspect: ContainerInspect, *, previous: Record | None) -> Record | None:
    """Return the record of a container that belongs to a pod, legacy or not; None for any other container.

    `previous` is the former record of the container.
    """
    name = inspect.name.lstrip("/")
    host = inspect.host_config
    ours = labels.is_ours(
        inspect.config.labels or {},
        init=host.init,
        userns_mode=host.userns_mode,
        container_id_file=host.container_id_file,
    )
    # A list alone may show a legacy container as ours.
    certain = None if previous is None or previous.state.from_list_only else previous
    known = _identify(
        inspect.id,
        name=name,
        settings=inspect.config,
        host=host,
        ours=ours,
        previous=certain,
        mounts=inspect.mounts or (),
    )
    if known is None:
        return None
    state = state_from_inspect(inspect)
    if previous is not None and previous.state.missed_exit and _is_same_run(previous.state, state):
        state = previous.state
    if isinstance(known, SandboxRecord):
        return replace(
            known,
            name=name,
            image_id=ImageId(inspect.image),
            mount_label=inspect.mount_label,
            shim_group=shim_group(host),
            exec_root=exec_root(inspect.network_settings),
            state=state,
        )
    return replace(
        known,
        name=name,
        image_id=ImageId(inspect.image),
        stop_signal=inspect.config.stop_signal,
        host=host,
        user=inspect.config.user,
        state=state,
        docker_log_path=inspect.log_path,
    )


def _is_same_run(ended: ContainerState, now: ContainerState) -> bool:
    """Return whether Docker still reports a run as running that is known to have ended."""
    return now.running and now.started_at == ended.started_at


def record_from_summary(listed: ContainerSummary) -> Record | None:
    """Return the record of a container from Docker's list, for use until an inspect succeeds; None if not in a pod."""
    name = name_from_summary(listed)
    settings = ContainerSettings(labels=listed.labels)
    ours = labels.CONFIG in (listed.labels or {})
    known = _identify(listed.id, name=name, settings=settings, host=listed.host_config, ours=ours, previous=None)
    if known is None:
        return None
    state = _state_from_summary(listed)
    if isinstance(known, SandboxRecord):
        return replace(known, image_id=ImageId(listed.image_id), state=state)
    return replace(known, image_id=ImageId(listed.image_id), state=state)


def name_from_summary(listed: ContainerSummary) -> str:
    """Return the container's own name. Docker's links add names of the form `/other/alias`."""
    plain = (name.lstrip("/") for name in listed.names or ())
    return next((name for name in plain if "/" not in name), "")


def may_be_of_a_pod(listed: ContainerSummary) -> bool:
    """Return whether a listed container may belong to a pod; other containers need no inspect."""
    return labels.may_be_of_a_pod(listed.labels or {}, network_mode=listed.host_config.network_mode)


def agrees(listed: ContainerSummary, record: Record | None) -> bool:
    """Return whether Docker's list agrees with the record of a container, or with its absence."""
    if record is None:
        return not may_be_of_a_pod(listed)
    phase = _PHASES.get(listed.state, pb.CONTAINER_UNKNOWN)
    failed_to_start = listed.state == "created" and record.state.reason == START_ERROR
    missed = phase == pb.CONTAINER_RUNNING and record.state.missed_exit
    same_phase = phase == record.state.phase or failed_to_start or missed
    return same_phase and not record.state.from_list_only and name_from_summary(listed) == record.name


def drifted_ids(listed: Sequence[ContainerSummary], records: Mapping[str, Record]) -> set[str]:
    """Return the ids of the containers whose records differ from Docker's list."""
    gone = records.keys() - {container.id for container in listed}
    return gone | {container.id for container in listed if not agrees(container, records.get(container.id))}


def mark_unknown(record: Record | None, *, message: str) -> Record | None:
    """Return the record with phase UNKNOWN, because Docker does not report its state. EXITED stays EXITED."""
    if record is None or record.state.phase == pb.CONTAINER_EXITED:
        return record
    return replace(record, state=replace(record.state, phase=pb.CONTAINER_UNKNOWN, pid=0, message=message))


def inspect_failed(record: Record | None, *, message: str) -> Record | None:
    """Return the record of a container whose inspects fail, with phase UNKNOWN.

    A sandbox keeps its state: the CRI has no UNKNOWN for sandboxes, and NOTREADY would end the pod. The resync detects
    the exit of its process.
    """
    return record if isinstance(record, SandboxRecord) else mark_unknown(record, message=message)


def from_list_only(record: Record | None, *, listed: ContainerSummary) -> Record | None:
    """Return the record after a failed inspect: the current one if Docker's list agrees with it, else UNKNOWN.

    A container that was never inspected gets its record from the list.
    """
    if record is None or record.state.from_list_only:
        return record_from_summary(listed)
    if agrees(listed, record):
        return record
    return mark_unknown(record, message=f"Docker lists it as {listed.state}, but does not answer an inspect")


def state_from_inspect(inspect: ContainerInspect) -> ContainerState:
    """Return the CRI state of a container."""
    phase = _PHASES.get(inspect.state.status, pb.CONTAINER_UNKNOWN)
    created_at = ns_from_rfc3339(inspect.created)
    restarts = inspect.host_config.restart_policy.name not in _NO_RESTARTS
    created = replace(EMPTY_STATE, phase=phase, created_at=created_at, restarts=restarts)
    if phase == pb.CONTAINER_RUNNING:
        return replace(created, pid=inspect.state.pid, started_at=ns_from_rfc3339(inspect.state.started_at))
    if phase == pb.CONTAINER_EXITED:
        has_run = ns_from_rfc3339(inspect.state.started_at)
        return _exited(created, inspect) if has_run else _removed_before_start(created, inspect)
    if phase == pb.CONTAINER_CREATED and (inspect.state.exit_code or inspect.state.error):
        return _start_failed(created, inspect)
    if phase == pb.CONTAINER_UNKNOWN:
        return replace(created, message=f"Docker reports an unknown state {inspect.state.status!r}")
    return created


def _exited(created: ContainerState, inspect: ContainerInspect) -> ContainerState:
    state = inspect.state
    started_at = ns_from_rfc3339(state.started_at)
    reason = COMPLETED if state.exit_code == 0 else ERROR
    # Docker also sets the flag if the kernel killed a child and the container continued. So the exit must be a SIGKILL.
    if state.oom_killed and state.exit_code == EXIT_SIGKILL:
        reason = OOM_KILLED
    return replace(
        created,
        exit_code=state.exit_code,
        reason=reason,
        message=state.error,
        started_at=started_at,
        # Docker records the start after the process runs, so a quick exit may be recorded earlier (seen on 20.10).
        finished_at=max(ns_from_rfc3339(state.finished_at), started_at),
    )


def _start_failed(created: ContainerState, inspect: ContainerInspect) -> ContainerState:
    """Return the state after a failed start. Docker keeps the status `created`, with the OCI runtime's error."""
    return replace(
        created,
        phase=pb.CONTAINER_EXITED,
        exit_code=EXIT_START_ERROR,
        reason=START_ERROR,
        message=plain_start_error(inspect.state.error),
        started_at=created.created_at,
        finished_at=created.created_at,
    )


def _removed_before_start(created: ContainerState, inspect: ContainerInspect) -> ContainerState:
    """Return the state of a container that has never run, and that Docker is removing or failed to remove.

    Unless a start has failed, Docker reports exit code 0, which would end a Job as a success. It reports no time of the
    exit, which the CRI requires.
    """
    if inspect.state.exit_code:
        return _start_failed(created, inspect)
    return replace(
        created,
        exit_code=EXIT_UNSEEN,
        reason=UNSEEN,
        message=inspect.state.error or "the container is being removed and was never started",
        finished_at=created.created_at,
    )


def _state_from_summary(listed: ContainerSummary) -> ContainerState:
    phase = _PHASES.get(listed.state, pb.CONTAINER_UNKNOWN)
    state = replace(EMPTY_STATE, created_at=listed.created * SECOND, from_list_only=True)
    if phase == pb.CONTAINER_EXITED:
        # Without an exit code the state must not be EXITED: 0 would end a Job as a success.
        return replace(state, message=f"Docker lists it as {listed.state}, but does not answer an inspect")
    return replace(state, phase=phase, started_at=state.created_at if phase == pb.CONTAINER_RUNNING else NEVER)


def _identify(
    container_id: str,
    *,
    name: str,
    settings: ContainerSettings,
    host: HostSettings,
    ours: bool,
    previous: Record | None,
    mounts: Sequence[MountPoint] = (),
) -> Record | None:
    """Return the record of a container, without a state; None if it belongs to no pod.

    A previous record is returned as it is. The record of a legacy container is rebuilt instead, because a list contains
    only a part of it; the previous record is returned only if the name no longer identifies the container.
    """
    if previous is not None and not previous.legacy:
        return previous
    if not labels.may_be_of_a_pod(settings.labels or {}, network_mode=host.network_mode):
        return None
    if ours:
        try:
            return _record_of_ours(container_id, name=name, tags=settings.labels or {})
        except ParseError:
            # A broken label must not hide a pod from Stop and Remove, and the name still identifies it.
            pass
    elif labels.is_of_committed_image(settings.labels or {}, name=name):
        return None
    return _legacy_record(container_id, name=name, settings=settings, host=host, mounts=mounts) or previous


def _record_of_ours(container_id: str, *, name: str, tags: dict[str, str]) -> Record:
    if labels.is_sandbox(tags):
        return SandboxRecord(
            id=SandboxId(container_id),
            name=name,
            config=labels.sandbox_config(tags),
            runtime_handler=tags.get(labels.RUNTIME_HANDLER, ""),
            state=EMPTY_STATE,
        )
    return _container_record(container_id, name=name, tags=tags, config=labels.container_config(tags), legacy=False)


def _legacy_record(
    container_id: str, *, name: str, settings: ContainerSettings, host: HostSettings, mounts: Sequence[MountPoint]
) -> Record | None:
    tags = settings.labels or {}
    parsed = legacy_name(name)
    if parsed is None:
        return None
    if labels.is_sandbox(tags):
        return SandboxRecord(
            id=SandboxId(container_id),
            name=name,
            config=sandbox_config(parsed, settings=settings, host=host),
            runtime_handler=tags.get(labels.RUNTIME_HANDLER, ""),
            state=EMPTY_STATE,
            legacy=True,
        )
    config = container_config(parsed, settings=settings, host=host, mounts=mounts)
    return _container_record(container_id, name=name, tags=tags, config=config, legacy=True)


def _container_record(
    container_id: str, *, name: str, tags: dict[str, str], config: pb.ContainerConfig, legacy: bool
) -> ContainerRecord:
    return ContainerRecord(
        id=ContainerId(container_id),
        name=name,
        sandbox_id=SandboxId(tags.get(labels.SANDBOX_ID, "")),
        config=config,
        image_id=ImageId(""),
        log_path=tags.get(labels.LOG_PATH, ""),
        stop_signal="",
        host=HostSettings(),
        state=EMPTY_STATE,
        legacy=legacy,
    )


def record_from_image(image: ImageInspect) -> ImageRecord:
    """Return the record of an inspected image."""
    settings = image.config
    return ImageRecord(
        id=ImageId(image.id),
        repo_tags=_tags(image.repo_tags),
        repo_digests=_canonical(image.repo_digests),
        size=image.size_on_disk,
        parent=ImageId(image.parent),
        inspected=True,
        user=settings.user if settings else "",
        entrypoint=tuple((settings and settings.entrypoint) or ()),
        architecture=image.architecture,
    )


def record_from_image_list(image: ImageSummary, *, known: ImageRecord | None) -> ImageRecord:
    """Return the record of a listed image; `known` provides the fields that a list lacks.

    An image whose user is unknown counts as running as root, which a pod may refuse.
    """
    listed = ImageRecord(
        id=ImageId(image.id),
        repo_tags=_tags(image.repo_tags),
        repo_digests=_canonical(_all_digests(image)),
        size=image.size,
        parent=ImageId(image.parent_id),
    )
    if known is None or not known.inspected:
        return listed
    user, entrypoint, architecture = known.user, known.entrypoint, known.architecture
    return replace(listed, inspected=True, user=user, entrypoint=entrypoint, architecture=architecture)


def _tags(spellings: list[str] | None) -> tuple[str, ...]:
    """Return the canonical tags, without digests. The containerd image store lists pulls by digest among the tags."""
    return _canonical([spelling for spelling in spellings or () if "@" not in spelling])


def _all_digests(image: ImageSummary) -> list[str]:
    """Return the digests of a listed image.

    The containerd image store lists digests for some names only. There the id is the manifest digest of all names.
    """
    digests = image.repo_digests or []
    if not any(digest.endswith(f"@{image.id}") for digest in digests):
        return digests
    return [*digests, *(f"{references.parse(tag).name}@{image.id}" for tag in _tags(image.repo_tags))]


def _canonical(spellings: list[str] | None) -> tuple[str, ...]:
    """Return names in canonical form, without `<none>:<none>`, Docker's name for untagged images before 23.0."""
    named = set()
    for spelling in spellings or ():
        try:
            named.add(references.canonical(spelling))
        except InvalidArgument:
            continue
    return tuple(sorted(named))
