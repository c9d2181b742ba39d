"""What is kept on disk for each pod sandbox, and for some containers.

Fields may be added with a default: older shims skip them. Anything else is a new `VERSION`.
"""

from typing import Any

import msgspec

VERSION = 1
"""Format of the files. One of a newer version is set aside, not guessed at, until a server comes that knows it. A
server with a new version must go on reading files of all earlier ones."""


class NetworkIntent(msgspec.Struct, frozen=True, kw_only=True):
    """What CNI was, or was about to be, asked for: written before ADD, and all that DEL needs."""

    conflist: dict[str, Any]
    """The whole CNI configuration list of the ADD, parsed; DEL runs with it although the file has changed."""

    netns: str
    """Path of the pinned network namespace."""

    ifname: str
    """Name of the interface in the pod."""

    args: list[tuple[str, str]]
    """CNI_ARGS in their order."""

    capabilities: dict[str, Any]
    """Capability arguments by capability, port mappings among them."""

    result: dict[str, Any] | None = None
    """The result of ADD; None until it succeeded."""

    released: bool = False
    """Whether DEL succeeded."""


class SandboxCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One pod sandbox."""

    sandbox_id: str
    """Docker's id of the pause container."""

    config: dict[str, Any]
    """The PodSandboxConfig as JSON, keys spelled as in the CRI; identifies the pod when the container is gone."""

    runtime_handler: str
    """As RunPodSandbox was asked; empty for the default."""

    created_at: int
    """Nanoseconds since the epoch."""

    ready: bool = False
    """Whether RunPodSandbox has finished."""

    pause_started_at: int = 0
    """When the pause process was started, ns since the epoch, 0 where that is not known. One that was started later
    (`docker restart`) has namespaces in which nothing is set up."""

    network: NetworkIntent | None = None
    """None for the host network, and until there is something to undo."""


class Versioned(msgspec.Struct, frozen=True, kw_only=True):
    """What the envelope of every version holds."""

    version: int


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The file: a checkpoint as it was encoded, and how to trust it."""

    version: int
    checksum: str
    """SHA-256 of the bytes of `data`, in hexadecimal."""

    data: msgspec.Raw


class KnownEngine(msgspec.Struct, frozen=True, kw_only=True):
    """What Docker last reported of itself, as far as clients ask for it before Docker is available."""

    server_version: str
    cgroup_driver: str
    """`systemd`, `cgroupfs` or `none`."""


class ContainerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one container that were changed since its creation, and that Docker has no field for."""

    container_id: str
    """Docker's id."""

    resources: dict[str, Any]
    """The part of its LinuxContainerResources that Docker cannot give back, as JSON, keys spelled as in the CRI."""
