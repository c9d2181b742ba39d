"""Characters of SELinux options. Whether a label exists is for the policy to decide when the container starts.

Where SELinux is off the options have no effect, so a pod may name a label that no policy has.
"""

import re

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

_PART = re.compile(r"[A-Za-z0-9_.-]+\Z")
_LEVEL = re.compile(r"[A-Za-z0-9_.:,-]+\Z")


def selinux(options: pb.SELinuxOption, *, field: str) -> None:
    """Check each part that is set.

    A ':' would shift the following parts of the label, and a quote would end the label in the options of a mount.
    """
    for name in ("user", "role", "type"):
        value = getattr(options, name)
        if value and not _PART.match(value):
            raise InvalidArgument(f"{field}.{name} {value!r} may hold only letters, digits, '_', '.' and '-'")
    if options.level and not _LEVEL.match(options.level):
        raise InvalidArgument(
            f"{field}.level {options.level!r} may hold only letters, digits, '_', '.', '-', ':' and ','"
        )
