"""Characters of SELinux options. Whether there is such a label is the policy's to say, when the container starts.

Where SELinux is off nothing is asked of them, so a pod may well name what no policy has.
"""

import re

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

_PART = re.compile(r"[A-Za-z0-9_.-]+\Z")
_LEVEL = re.compile(r"[A-Za-z0-9_.:,-]+\Z")


def selinux(options: pb.SELinuxOption, *, field: str) -> None:
    """Check each part that is set.

    A ':' in one would shift all behind it, and quotes would end the label in the options of a mount.
    """
    for name in ("user", "role", "type"):
        value = getattr(options, name)
        if value and not _PART.match(value):
            raise InvalidArgument(f"{field}.{name} {value!r} may hold only letters, digits, '_', '.' and '-'")
    if options.level and not _LEVEL.match(options.level):
        raise InvalidArgument(
            f"{field}.level {options.level!r} may hold only letters, digits, '_', '.', '-', ':' and ','"
        )
