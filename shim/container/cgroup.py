"""Limits that Docker has no field for: the server writes them to the container's cgroup after its start.

Docker offers no earlier moment, so the container runs without them for some milliseconds. The server writes them again
after each update through Docker, because the OCI runtime or systemd then resets the cgroup's files.
"""

from shim.api.v1 import api_pb2 as pb
from shim.base.process import open_process
from shim.cgroup.figures import NO_LIMIT
from shim.cgroup.keys import page_size_name
from shim.cgroup.places import Group
from shim.cgroup.writes import Write, check_writable, write_all
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from shim.runtime import Runtime
from shim.spec.resources import check_memory, is_small, known_resources
from shim.view.records import ContainerRecord, SandboxRecord

EXIT_SECONDS = 1.0
"""Maximum time from a process's leaving its cgroup until it is a zombie."""


def check_unified_possible(resources: pb.LinuxContainerResources, *, field: str, version: str) -> None:
    """Raise InvalidArgument if `resources` have files of cgroup v2, but `version` is "1". Pure.

    OCI runtimes refuse them too, and a kubelet on cgroup v1 sends none. The names of the files are already validated.
    """
    if resources.unified and version != "2":
        raise InvalidArgument(f"{field}.unified needs cgroup v2; this node has v1")


def check_on_node(rt: Runtime, resources: pb.LinuxContainerResources, *, field: str, sandbox: SandboxRecord) -> None:
    """Check the limits of a new container in this pod as far as possible before it exists.

    The container's cgroup will have the same files as the pause container's.
    """
    check_unified_possible(resources, field=field, version=rt.facts.info().cgroup_version)
    check_memory(resources, field=field)
    if not needs_writing(resources) or not sandbox.state.pid:
        return
    try:
        group = rt.cgroups.find(sandbox.id, pid=sandbox.state.pid)
    except NotFound:
        return
    check_writable(writes_beyond_docker(resources, group, field=field))


def writes_beyond_docker(resources: pb.LinuxContainerResources, group: Group, *, field: str) -> list[Write]:
    """List the writes to a container's cgroup for the part of `resources` that Docker does not apply.

    Unified keys come last, because as in OCI runtimes they override a field for the same limit.
    """
    return [
        *_memory(resources, group, field=field),
        *_huge_pages(resources, group, field=f"{field}.hugepage_limits"),
        *(
            Write(group.unified_file(key), value, f"{field}.unified[{key!r}]")
            for key, value in resources.unified.items()
        ),
    ]


def needs_writing(resources: pb.LinuxContainerResources) -> bool:
    """Return whether `resources` may contain a limit that Docker has no field for."""
    memory = resources.memory_limit_in_bytes
    unlimited = NO_LIMIT in (memory, resources.memory_swap_limit_in_bytes)
    return bool(resources.unified or resources.hugepage_limits) or unlimited or is_small(memory)


def wanted_resources(rt: Runtime, record: ContainerRecord) -> pb.LinuxContainerResources:
    """Return a container's desired limits, from Docker, its configuration and later updates."""
    return known_resources(record.host, rt.limits.get(record.id) or record.config.linux.resources)


def ensure_limits(rt: Runtime, record: ContainerRecord) -> None:
    """Write the limits that Docker has no field for to a started container's cgroup, unless the container has ended.

    The caller holds the container's lock `limits`, or no other thread knows the container yet.
    """
    resources = wanted_resources(rt, record)
    if not needs_writing(resources):
        return
    group = group_to_write(rt, record, resources=resources)
    if group is not None:
        write_all(writes_beyond_docker(resources, group, field="config.linux.resources"))


def group_to_write(rt: Runtime, record: ContainerRecord, *, resources: pb.LinuxContainerResources) -> Group | None:
    """Return the cgroup of a running container; None if it has ended, or has no cgroup.

    Raise FailedPrecondition if `resources` need a cgroup, but the OCI runtime created none, as sandboxed runtimes do.
    """
    pid = record.state.pid
    try:
        return rt.cgroups.find(record.id, pid=pid) if pid else None
    except NotFound as error:
        if needs_writing(resources) and not ends(pid):
            raise FailedPrecondition(f"write limits of container {record.id}: {error}") from error
        return None


def ends(pid: int) -> bool:
    """Return whether the first process of a container has ended or ends within EXIT_SECONDS.

    A process first leaves its cgroups, then becomes a zombie; Docker reports its end even later.
    """
    with open_process(pid, what="write limits") as handle:
        return handle is None or handle.ends_within(EXIT_SECONDS)


def _memory(resources: pb.LinuxContainerResources, group: Group, *, field: str) -> list[Write]:
    memory, both = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    writes = []
    if is_small(memory):
        writes.append(Write(*group.memory_file(memory), f"{field}.memory_limit_in_bytes"))
        both = both or memory
    if is_small(memory) or NO_LIMIT in (memory, both):
        # An update through Docker cannot remove a swap limit. Kernels without swap accounting lack the file; Docker
        # ignores this too.
        path, text = group.swap_file(NO_LIMIT if memory == NO_LIMIT else both, memory=memory)
        writes.append(Write(path, text, f"{field}.memory_swap_limit_in_bytes", optional=True))
    return writes


def _huge_pages(resources: pb.LinuxContainerResources, group: Group, *, field: str) -> list[Write]:
    writes = []
    for wanted in resources.hugepage_limits:
        size = page_size_name(wanted.page_size)
        paths = group.huge_page_files(size)
        if not paths and wanted.limit:
            raise FailedPrecondition(f"{field}: this node does not limit huge pages (no hugetlb controller)")
        for number, path in enumerate(paths):
            # The kubelet sends 0 for each page size that a pod does not use, even if the kernel has no huge pages.
            writes.append(Write(path, str(wanted.limit), f"{field}[{size}]", optional=not wanted.limit or number > 0))
    return writes
