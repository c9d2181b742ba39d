"""What a client may name in a control group: files of version 2, and sizes of huge pages. Pure.

Checks raise InvalidArgument that names the field. What is let through is the name of a file in one directory, and none
that would move processes or change the tree.
"""

import re
from collections.abc import Iterable, Mapping

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

MAX_KEYS = 128
"""Files of one group that a container may set; the kernel has half as many."""
MAX_VALUE = 4095
"""Bytes; the kernel takes a page at most, in one write."""

_KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-zA-Z0-9_-]+)+\Z")
_CORE = "cgroup."
# Of the tree's own files these are limits. The others kill, freeze, move processes or hand out controllers.
_CORE_LIMITS = frozenset({"cgroup.max.depth", "cgroup.max.descendants"})
# Neither are these: they make the kernel act at once, split the machine, or watch.
_NO_LIMITS = frozenset({"memory.reclaim", "cpuset.cpus.partition"})
_WATCHES = ".pressure"
MAX_PIDS = 1 << 22
"""The most processes a Linux kernel can have (PID_MAX_LIMIT); it takes no higher limit."""
_PIDS = re.compile(r"0*([1-9][0-9]{0,6})\Z")
_BYTES = re.compile(r"(0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*|)([KMGTPE]?)\Z", re.IGNORECASE)
_SHIFTS = {unit: 10 * power for power, unit in enumerate(("", *"KMGTPE"))}
_PAGE_SIZE = re.compile(r"([1-9][0-9]{0,9})([KMG])i?B?\Z")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def check_unified(unified: Mapping[str, str], *, field: str) -> None:
    """Check names and values of files of version 2."""
    if len(unified) > MAX_KEYS:
        raise InvalidArgument(f"{field} has {len(unified)} keys, at most {MAX_KEYS} are allowed")
    for key, value in unified.items():
        if not _KEY.match(key):
            raise InvalidArgument(f"{field}: {key[:MAX_KEYS]!r} is not a cgroup file")
        if not _is_limit(key):
            raise InvalidArgument(f"{field}: {key!r} is not a limit of a container")
        if "\0" in value or len(value.encode()) > MAX_VALUE:
            raise InvalidArgument(f"{field}[{key!r}] holds a NUL or more than {MAX_VALUE} bytes")
    _check_pids(unified.get("pids.max", "max"), field=f"{field}['pids.max']")


def _is_limit(key: str) -> bool:
    if key.startswith(_CORE):
        return key in _CORE_LIMITS
    return key not in _NO_LIMITS and not key.endswith(_WATCHES)


def _check_pids(value: str, *, field: str) -> None:
    number = _PIDS.match(value)
    # With 0, which Docker reads as no limit, not even the first process could be started.
    if value != "max" and (not number or int(number[1]) > MAX_PIDS):
        raise InvalidArgument(f"{field} {value[:20]!r} is neither a number from 1 to {MAX_PIDS} nor max")


def bytes_from_limit(text: str) -> int | None:
    """Read what is written to a file such as `memory.max` as the kernel does; None for `max` and what it refuses.

    Numbers are those of C, units powers of 1024, nothing at all is 0, and what has more than 64 bits wraps around.
    """
    parsed = _BYTES.match(text.strip())
    if not parsed:
        return None
    digits = parsed[1].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return (int(digits or "0", base) << _SHIFTS[parsed[2].upper()]) % (1 << 64)


def huge_page_limits(limits: Iterable[pb.HugepageLimit], *, field: str) -> dict[str, int]:
    """Return bytes by size of the page, as the kernel names it: `2MB`, however it is spelled (`2Mi`, `2048KB`)."""
    found: dict[str, int] = {}
    for index, one in enumerate(limits):
        size = page_size_name(one.page_size)
        if not size:
            raise InvalidArgument(f"{field}[{index}].page_size {one.page_size[:40]!r} is not a size such as 2MB or 1GB")
        if size in found:
            raise InvalidArgument(f"{field}[{index}].page_size {one.page_size!r} is limited twice")
        found[size] = one.limit
    return found


def page_size_name(text: str) -> str:
    """Return the kernel's name of a page size, empty for what is none. Pages are powers of two."""
    parsed = _PAGE_SIZE.match(text)
    size = int(parsed[1]) * _UNITS[parsed[2]] if parsed else 0
    if size == 0 or size & (size - 1):
        return ""
    unit = next(unit for unit in "GMK" if size >= _UNITS[unit])
    return f"{size // _UNITS[unit]}{unit}B"
