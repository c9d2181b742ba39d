"""The identifiers of the CRI. They are opaque to clients; this server uses Docker's ids."""

from collections.abc import Iterable
from typing import NewType

from shim.domain.errors import InvalidArgument

SandboxId = NewType("SandboxId", str)
"""Docker's id of the pause container: 64 hexadecimal digits."""

ContainerId = NewType("ContainerId", str)
"""Docker's id of an application container: 64 hexadecimal digits."""

ImageId = NewType("ImageId", str)
"""Docker's image id, `sha256:` and 64 hexadecimal digits: identifies an image everywhere in the server."""


def match_id(wanted: str, ids: Iterable[str], *, field: str) -> str | None:
    """Return the id that equals `wanted`, or the only id with that prefix; None without a match.

    Raise InvalidArgument if several ids have the prefix.
    """
    fitting = {known for known in ids if known.startswith(wanted)}
    if wanted in fitting:
        return wanted
    if len(fitting) > 1:
        raise InvalidArgument(f"{field} {wanted!r} fits {len(fitting)} ids")
    return next(iter(fitting), None)
