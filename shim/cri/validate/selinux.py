"""The form of SELinux options. Whether a type exists is the policy's to say, when the container starts."""

import re

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

_WORD = re.compile(r"[A-Za-z0-9_.-]+\Z")
_CATEGORIES = r"c\d+(?:[.,]c\d+)*"
_LEVEL = rf"s\d+(?::{_CATEGORIES})?"
_RANGE = re.compile(rf"{_LEVEL}(?:-{_LEVEL})?\Z")
"""`s0`, `s0:c1,c5`, `s0:c1.c5`, or a range `s0-s0:c0.c1023`."""


def selinux(options: pb.SELinuxOption, *, field: str) -> None:
    """Check each part that is set; a ':' in one would shift all behind it."""
    for name in ("user", "role", "type"):
        value = getattr(options, name)
        if value and not _WORD.match(value):
            raise InvalidArgument(f"{field}.{name} {value!r} may hold only letters, digits, '_', '.' and '-'")
    if options.level and not _RANGE.match(options.level):
        raise InvalidArgument(f"{field}.level {options.level!r} is not a level such as s0 or s0:c1,c5")
