"""Reads legacy pods: pods that cri-dockerd, or the kubelet's dockershim before it, created on this Engine.

Legacy pods have no label with their configuration. The metadata is in the Docker name,
`k8s_<name>_<pod>_<namespace>_<uid>_<attempt>`, perhaps with a suffix of eight hexadecimal digits. CRI labels are Docker
labels, CRI annotations are Docker labels with a prefix, and a few labels are cri-dockerd's own (source: its
`core/naming.go` and `core/helpers.go`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shim.api.v1 import api_pb2 as pb
from shim.domain import labels, names
from shim.engine.answers import ContainerSettings, HostSettings, MountPoint

_SUFFIX = re.compile(r"[0-9a-f]{8}")
_MAX_ATTEMPT = 2**32 - 1
_PROPAGATION = {
    "rshared": pb.PROPAGATION_BIDIRECTIONAL,
    "shared": pb.PROPAGATION_BIDIRECTIONAL,
    "rslave": pb.PROPAGATION_HOST_TO_CONTAINER,
    "slave": pb.PROPAGATION_HOST_TO_CONTAINER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyName:
    """The metadata in the Docker name of a legacy container."""

    container: str
    """`POD` for a sandbox."""
    pod: str
    namespace: str
    uid: str
    attempt: int


def legacy_name(name: str) -> LegacyName | None:
    """Parse a Docker name, with or without its slash; None if it is not a legacy name."""
    bare = name.lstrip("/")
    parts = bare.removeprefix(names.PREFIX).split("_")
    if not bare.startswith(names.PREFIX) or len(parts) not in {5, 6}:
        return None
    if len(parts) == 6 and not _SUFFIX.fullmatch(parts[5]):
        return None
    container, pod, namespace, uid, attempt = parts[:5]
    if not (attempt.isascii() and attempt.isdigit() and int(attempt) <= _MAX_ATTEMPT):
        return None
    return LegacyName(container=container, pod=pod, namespace=namespace, uid=uid, attempt=int(attempt))


def sandbox_config(name: LegacyName, *, settings: ContainerSettings, host: HostSettings) -> pb.PodSandboxConfig:
    """Return a sandbox's configuration without its log directory and DNS, which cannot be read back."""
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name.pod, namespace=name.namespace, uid=name.uid, attempt=name.attempt),
        labels=dict(_cri_labels(settings, hidden={labels.CONTAINER_NAME})),
        annotations=dict(_cri_annotations(settings)),
    )
    config.linux.cgroup_parent = host.cgroup_parent
    config.linux.security_context.namespace_options.CopyFrom(_namespaces(host))
    return config


def container_config(
    name: LegacyName, *, settings: ContainerSettings, host: HostSettings, mounts: Sequence[MountPoint]
) -> pb.ContainerConfig:
    """Return a container's configuration without the requested user, which cannot be read back.

    The mounts are Docker's, including image volumes. The kubelet searches them for the termination message.
    """
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=name.container, attempt=name.attempt),
        image=pb.ImageSpec(image=settings.image),
        labels=dict(_cri_labels(settings, hidden=set())),
        annotations=dict(_cri_annotations(settings)),
        mounts=[_mount(mounted) for mounted in mounts if mounted.source],
    )
    config.linux.security_context.namespace_options.CopyFrom(_namespaces(host))
    return config


def _mount(mounted: MountPoint) -> pb.Mount:
    return pb.Mount(
        container_path=mounted.destination,
        host_path=mounted.source,
        readonly=not mounted.rw,
        propagation=_PROPAGATION.get(mounted.propagation, pb.PROPAGATION_PRIVATE),
    )


def _cri_labels(settings: ContainerSettings, *, hidden: set[str]) -> Iterator[tuple[str, str]]:
    for key, value in (settings.labels or {}).items():
        if key not in labels.RESERVED and key not in hidden and not key.startswith(labels.ANNOTATION_PREFIX):
            yield key, value


def _cri_annotations(settings: ContainerSettings) -> Iterator[tuple[str, str]]:
    for key, value in (settings.labels or {}).items():
        if key.startswith(labels.ANNOTATION_PREFIX):
            yield key.removeprefix(labels.ANNOTATION_PREFIX), value


def _namespaces(host: HostSettings) -> pb.NamespaceOption:
    def of_mode(mode: str, *, own: pb.NamespaceMode) -> pb.NamespaceMode:
        if mode == "host":
            return pb.NODE
        return pb.POD if mode.startswith("container:") else own

    return pb.NamespaceOption(
        network=of_mode(host.network_mode, own=pb.POD),
        pid=of_mode(host.pid_mode, own=pb.CONTAINER),
        ipc=of_mode(host.ipc_mode, own=pb.POD),
    )
