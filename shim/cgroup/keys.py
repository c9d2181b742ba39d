"""What a client may name in a control group: files of version 2, and sizes of huge pages. Pure.

Checks raise InvalidArgument that names the field. What is let through is the name of a file in one directory, and none
that would move processes or change the tree.
"""

import re
from collections.abc import Iterable, Mapping

from shim.api.v1 import api_pb2 as pb
from shim.errors import InvalidArgument

MAX_KEYS = 128
"""Files of one group that a container may set; the kernel has half as many."""
MAX_VALUE = 4095
"""Bytes; the kernel takes a page at most, in one write."""

_KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-zA-Z0-9_-]+)+\Z")
_CORE = "cgroup."
# Of the tree's own files these are limits. The others kill, freeze, move processes or hand out controllers.
_CORE_LIMITS = frozenset({"cgroup.max.depth", "cgroup.max.descendants"})
_PIDS = re.compile(r"(max|0*[1-9][0-9]{0,18})\Z")
_PAGE_SIZE = re.compile(r"([1-9][0-9]{0,9})([KMG])i?B?\Z")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def check_unified(unified: Mapping[str, str], *, field: str) -> None:
    """Check names and values of files of version 2."""
    if len(unified) > MAX_KEYS:
        raise InvalidArgument(f"{field} has {len(unified)} keys, at most {MAX_KEYS} are allowed")
    for key, value in unified.items():
        if not _KEY.match(key):
            raise InvalidArgument(f"{field}: {key[:MAX_KEYS]!r} is no cgroup file")
        if key.startswith(_CORE) and key not in _CORE_LIMITS:
            raise InvalidArgument(f"{field}: {key!r} is no limit of a container")
        if "\0" in value or len(value.encode()) > MAX_VALUE:
            raise InvalidArgument(f"{field}[{key!r}] holds a NUL or more than {MAX_VALUE} bytes")
    if "pids.max" in unified and not _PIDS.match(unified["pids.max"]):
        # With 0, which Docker reads as no limit, not even the first process could be started.
        raise InvalidArgument(f"{field}['pids.max'] {unified['pids.max'][:20]!r} is neither a positive number nor max")


def huge_page_limits(limits: Iterable[pb.HugepageLimit], *, field: str) -> dict[str, int]:
    """Give bytes by size of the page, as the kernel names it: `2MB`, however it is spelled (`2Mi`, `2048KB`)."""
    found: dict[str, int] = {}
    for index, one in enumerate(limits):
        size = page_size_name(one.page_size)
        if not size:
            raise InvalidArgument(f"{field}[{index}].page_size {one.page_size[:40]!r} is no size such as 2MB or 1GB")
        if size in found:
            raise InvalidArgument(f"{field}[{index}].page_size {one.page_size!r} is limited twice")
        found[size] = one.limit
    return found


def page_size_name(text: str) -> str:
    """Give the kernel's name of a page size, empty for what is none. Pages are powers of two."""
    parsed = _PAGE_SIZE.match(text)
    size = int(parsed[1]) * _UNITS[parsed[2]] if parsed else 0
    if size == 0 or size & (size - 1):
        return ""
    unit = next(unit for unit in "GMK" if size >= _UNITS[unit])
    return f"{size // _UNITS[unit]}{unit}B"
