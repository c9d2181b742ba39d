"""The identifiers of the CRI. All are opaque to clients; here they are Docker's."""

from collections.abc import Iterable
from typing import NewType

from shim.domain.errors import InvalidArgument

SandboxId = NewType("SandboxId", str)
"""Docker's id of the pause container: 64 hexadecimal digits."""

ContainerId = NewType("ContainerId", str)
"""Docker's id of an application container: 64 hexadecimal digits."""

ImageId = NewType("ImageId", str)
"""Docker's image id, `sha256:` and 64 hexadecimal digits: the one identity of an image everywhere."""


def only_id(wanted: str, ids: Iterable[str], *, field: str) -> str | None:
    """Return the id that is `wanted`, or the only one with that prefix; None when there is none.

    Raise InvalidArgument when several have it.
    """
    fitting = {known for known in ids if known.startswith(wanted)}
    if wanted in fitting:
        return wanted
    if len(fitting) > 1:
        raise InvalidArgument(f"{field} {wanted!r} fits {len(fitting)} ids")
    return next(iter(fitting), None)
