"""The identifiers of the CRI. All are opaque to clients; on this runtime they are what Docker gave."""

from typing import NewType

SandboxId = NewType("SandboxId", str)
"""Docker's id of the pause container: 64 hexadecimal digits."""

ContainerId = NewType("ContainerId", str)
"""Docker's id of an application container: 64 hexadecimal digits."""

ImageId = NewType("ImageId", str)
"""Docker's image id, `sha256:` and 64 hexadecimal digits: the one identity of an image everywhere."""
