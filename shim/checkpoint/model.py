"""The structures of state files.

Fields may be added with a default: older servers skip them. Any other change needs a new `VERSION`.
"""

from typing import Any

import msgspec

VERSION = 1
"""Format of the files. A file of another version is set aside. A server with a new version must still read files of all
earlier versions."""


class NetworkIntent(msgspec.Struct, frozen=True, kw_only=True):
    """The CNI request of a sandbox: written before ADD, and all that DEL needs."""

    conflist: dict[str, Any]
    """The whole CNI configuration list of the ADD, parsed; DEL uses it even if the file has changed."""

    netns: str
    """Path of the pinned network namespace."""

    ifname: str
    """Name of the interface in the pod."""

    args: list[tuple[str, str]]
    """CNI_ARGS in order."""

    capabilities: dict[str, Any]
    """Capability arguments by capability, including port mappings."""

    result: dict[str, Any] | None = None
    """The result of ADD; None until it succeeded."""

    released: bool = False
    """Whether DEL succeeded."""


class SandboxCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A pod sandbox."""

    sandbox_id: str
    """Docker's id of the pause container."""

    config: dict[str, Any]
    """The PodSandboxConfig as JSON with the CRI's field names; identifies the pod when the container is gone."""

    runtime_handler: str
    """As requested by RunPodSandbox; empty for the default."""

    created_at: int
    """Nanoseconds since the epoch."""

    ready: bool = False
    """Whether RunPodSandbox has finished."""

    pause_started_at: int = 0
    """When the pause process was started, ns since the epoch; 0 if unknown. After a later start (`docker restart`) the
    pod's namespaces are new and not set up."""

    network: NetworkIntent | None = None
    """None for the host network, and while there is no network to release."""


class Versioned(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the envelope that is common to all versions."""

    version: int


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The file: the encoded data, and its checksum."""

    version: int
    checksum: str
    """SHA-256 of the bytes of `data`, in hexadecimal."""

    data: msgspec.Raw


class KnownEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Docker's last known facts that clients ask for while Docker is unavailable."""

    server_version: str
    cgroup_driver: str
    """`systemd`, `cgroupfs` or `none`."""


class ContainerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a container that were updated after its creation, and that Docker has no field for."""

    container_id: str
    """Docker's id."""

    resources: dict[str, Any]
    """The part of its LinuxContainerResources that Docker cannot return, as JSON with the CRI's field names."""
