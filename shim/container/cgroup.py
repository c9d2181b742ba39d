"""Limits that Docker has no field for, written into the container's own cgroup after its start and each update.

There is a window of some milliseconds between start and write; Docker offers no earlier moment.
"""

import re

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.places import cgroup_directory
from shim.container.resources import SMALLEST_MEMORY
from shim.errors import FailedPrecondition, InvalidArgument

_UNIFIED_KEY = re.compile(r"[a-z0-9_]+\.[A-Za-z0-9_.-]+\Z")

Writes = dict[tuple[str, str], str]
"""(controller, file) to the text to write; cgroup v2 ignores the controller."""


def extra_writes(resources: pb.LinuxContainerResources, *, field: str, version: str) -> Writes:
    """List what must be written for `resources` on cgroup `version` ("1" or "2"). Pure.

    InvalidArgument names a key that no cgroup file can have, or unified keys on cgroup v1 (runc refuses them too).
    """
    if resources.unified and version != "2":
        raise InvalidArgument(f"{field}.unified needs cgroup v2, this node has v1")
    writes: Writes = {}
    for key, value in resources.unified.items():
        if not _UNIFIED_KEY.match(key) or ".." in key:
            raise InvalidArgument(f"{field}.unified: {key!r} is no cgroup file")
        writes[key.partition(".")[0], key] = value
    for limit in resources.hugepage_limits:
        name = f"hugetlb.{limit.page_size}." + ("max" if version == "2" else "limit_in_bytes")
        if "/" in name:
            raise InvalidArgument(f"{field}.hugepage_limits: bad page size {limit.page_size!r}")
        # The kubelet sends 0 for every size a pod does not use, also where the kernel has no huge pages.
        if limit.limit:
            writes["hugetlb", name] = str(limit.limit)
    if 0 < resources.memory_limit_in_bytes < SMALLEST_MEMORY:
        name = "memory.max" if version == "2" else "memory.limit_in_bytes"
        writes["memory", name] = str(resources.memory_limit_in_bytes)
    return writes


def apply_writes(writes: Writes, *, pid: int, container_id: str) -> None:
    """Write to the cgroup of `pid`. FailedPrecondition names the file that is missing or refused."""
    for (controller, name), value in writes.items():
        path = cgroup_directory(pid, controller=controller) / name
        try:
            with path.open("r+b", buffering=0) as file:
                file.write(value.encode())
        except OSError as error:
            raise FailedPrecondition(
                f"set {name}={value} for container {container_id}: {path}: {error.strerror}"
            ) from error
