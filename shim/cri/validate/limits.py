"""Rules for the limits of a container or pod that depend on the request alone.

Docker checks some of them itself, but reports several wrong values only at the start, when it has applied some limits.
"""

import re

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import NO_LIMIT
from shim.cgroup.keys import MAX_VALUE, check_unified, huge_page_limits
from shim.cgroup.shares import MAX_SHARES, MIN_SHARES
from shim.cri.validate import rules
from shim.domain.errors import InvalidArgument

PERIOD = (1_000, 1_000_000)
"""Microseconds; the kernel's limits."""
LEAST_QUOTA = 1_000
MAX_OOM_SCORE_ADJ = 1_000
MAX_CPU, MAX_NODE = 8_191, 1_023
"""Largest numbers a kernel can be built for. Docker allocates memory for every number of a range."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


def resources(wanted: pb.LinuxContainerResources, *, field: str) -> None:
    """Check CPU, memory, huge pages, OOM score and cgroup v2 files. 0 and "" mean "not set" and always pass."""
    _cpu(wanted, field=field)
    _numbers(wanted.cpuset_cpus, most=MAX_CPU, field=f"{field}.cpuset_cpus")
    _numbers(wanted.cpuset_mems, most=MAX_NODE, field=f"{field}.cpuset_mems")
    for name in ("memory_limit_in_bytes", "memory_swap_limit_in_bytes"):
        if getattr(wanted, name) < NO_LIMIT:
            raise InvalidArgument(f"{field}.{name} {getattr(wanted, name)} is less than {NO_LIMIT}")
    rules.between(
        wanted.oom_score_adj, least=-MAX_OOM_SCORE_ADJ, most=MAX_OOM_SCORE_ADJ, field=f"{field}.oom_score_adj"
    )
    huge_page_limits(wanted.hugepage_limits, field=f"{field}.hugepage_limits")
    check_unified(wanted.unified, field=f"{field}.unified")


def _cpu(wanted: pb.LinuxContainerResources, *, field: str) -> None:
    if wanted.cpu_period:
        rules.between(wanted.cpu_period, least=PERIOD[0], most=PERIOD[1], field=f"{field}.cpu_period")
    if wanted.cpu_shares:
        rules.between(wanted.cpu_shares, least=MIN_SHARES, most=MAX_SHARES, field=f"{field}.cpu_shares")
    if wanted.cpu_quota not in {0, NO_LIMIT} and wanted.cpu_quota < LEAST_QUOTA:
        raise InvalidArgument(f"{field}.cpu_quota {wanted.cpu_quota} is neither -1 nor at least {LEAST_QUOTA}")


def _numbers(text: str, *, most: int, field: str) -> None:
    """Check a list such as `0-3,8`."""
    if len(text) > MAX_VALUE:
        raise InvalidArgument(f"{field} has {len(text)} characters, at most {MAX_VALUE} are allowed")
    for part in text.split(",") if text else ():
        parsed = _RANGE.match(part)
        if parsed is None:
            raise InvalidArgument(f"{field} {text[:80]!r} is not a list such as 0-3,8")
        first, last = int(parsed[1]), int(parsed[2] or parsed[1])
        if first > last or last > most:
            raise InvalidArgument(f"{field}: {part} is not a range up to {most}")
