"""Checks the cgroup files of version 2 and the sizes of huge pages that a client names. Pure.

A check raises InvalidArgument that names the field. It accepts only names of limit files in the group's directory, and
none that would move processes or change the tree.
"""

import re
from collections.abc import Iterable, Mapping

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

MAX_KEYS = 128
"""Files of its group that a container may set; the kernel has half as many."""
MAX_VALUE = 4095
"""Bytes; the kernel accepts at most a page in one write."""

_KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-zA-Z0-9_-]+)+\Z")
_CORE = "cgroup."
# The limits among the cgroup.* files. The others kill, freeze or move processes, or enable controllers.
_CORE_LIMITS = frozenset({"cgroup.max.depth", "cgroup.max.descendants"})
# Not limits: they make the kernel act at once, partition the machine, or set up notifications.
_NO_LIMITS = frozenset({"memory.reclaim", "cpuset.cpus.partition"})
_WATCHES = ".pressure"
MAX_PIDS = 1 << 22
"""The highest number of processes of a Linux kernel (PID_MAX_LIMIT), which accepts no higher limit."""
_PIDS = re.compile(r"0*([1-9][0-9]{0,6})\Z")
_BYTES = re.compile(r"(0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*|)([KMGTPE]?)\Z", re.IGNORECASE)
_SHIFTS = {unit: 10 * power for power, unit in enumerate(("", *"KMGTPE"))}
_PAGE_SIZE = re.compile(r"([1-9][0-9]{0,9})([KMG])i?B?\Z")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def check_unified(unified: Mapping[str, str], *, field: str) -> None:
    """Check the names and values of version 2 files."""
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
    # 0 would not allow even the first process, and Docker takes it for no limit.
    if value != "max" and (not number or int(number[1]) > MAX_PIDS):
        raise InvalidArgument(f"{field} {value[:20]!r} is neither a number from 1 to {MAX_PIDS} nor max")


def bytes_from_limit(text: str) -> int | None:
    """Parse a value for a file such as `memory.max` as the kernel does; None for `max` and for what the kernel refuses.

    Numbers are written as in C, units are powers of 1024, an empty text is 0, and more than 64 bits wrap around.
    """
    parsed = _BYTES.match(text.strip())
    if not parsed:
        return None
    digits = parsed[1].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return (int(digits or "0", base) << _SHIFTS[parsed[2].upper()]) % (1 << 64)


def huge_page_limits(limits: Iterable[pb.HugepageLimit], *, field: str) -> dict[str, int]:
    """Return the limits in bytes by the kernel's name of the page size: `2MB` for `2Mi`, `2048KB` and so on."""
    found: dict[str, int] = {}
    for index, each in enumerate(limits):
        size = page_size_name(each.page_size)
        if not size:
            raise InvalidArgument(
                f"{field}[{index}].page_size {each.page_size[:40]!r} is not a size such as 2MB or 1GB"
            )
        if size in found:
            raise InvalidArgument(f"{field}[{index}].page_size {each.page_size!r} is limited twice")
        found[size] = each.limit
    return found


def page_size_name(text: str) -> str:
    """Return the kernel's name of a page size; empty if `text` is not a size or not a power of two."""
    parsed = _PAGE_SIZE.match(text)
    size = int(parsed[1]) * _UNITS[parsed[2]] if parsed else 0
    if size == 0 or size & (size - 1):
        return ""
    unit = next(unit for unit in "GMK" if size >= _UNITS[unit])
    return f"{size // _UNITS[unit]}{unit}B"
