"""Annotations for the OCI runtime: names of pod and container, and those that the node's administrator passes on.

An OCI runtime may do anything for an annotation: sandboxed runtimes take settings from them, runc sets properties of
systemd units. So only annotations named in a setting are passed. The annotation that assigns a pod its containerd-shim
is never passed, since a pod could join another pod's.
"""

import secrets
from collections.abc import Iterable, Mapping

from shim.api.v1 import api_pb2 as pb
from shim.config.model import Config
from shim.config.wildcard import expression_from_wildcard
from shim.dockerd.runc import SHIM_GROUP, has_runc_shim
from shim.engine.answers import EngineInfo
from shim.engine.connection import ApiVersion
from shim.engine.versions import require_api

_CRI = "io.kubernetes.cri."
ANNOTATIONS_API = (1, 43)
"""First Engine API that passes annotations on; older Engines drop them silently."""


def sandbox_annotations(config: pb.PodSandboxConfig, *, settings: Config, api_version: ApiVersion) -> dict[str, str]:
    """Return the annotations of a pod for its pause container. Raise Unsupported if the Engine is too old for them."""
    return _select(config.annotations, patterns=settings.pod_annotations, have=api_version)


def container_annotations(
    config: pb.ContainerConfig, *, pod: pb.PodSandboxConfig, settings: Config, api_version: ApiVersion
) -> dict[str, str]:
    """Return the annotations for a container: the pod's, overridden by the container's."""
    own = _select(config.annotations, patterns=settings.container_annotations, have=api_version)
    return {**sandbox_annotations(pod, settings=settings, api_version=api_version), **own}


def sandbox_names(pod: pb.PodSandboxMetadata) -> dict[str, str]:
    """Return the annotations by which containerd names a pod sandbox."""
    return {
        f"{_CRI}container-type": "sandbox",
        f"{_CRI}sandbox-name": pod.name,
        f"{_CRI}sandbox-namespace": pod.namespace,
        f"{_CRI}sandbox-uid": pod.uid,
    }


def container_names(
    config: pb.ContainerConfig, *, image: str, pod: pb.PodSandboxMetadata, sandbox_id: str
) -> dict[str, str]:
    """Return the annotations by which containerd names a container of a pod; `image` is the image's name."""
    return {
        **sandbox_names(pod),
        f"{_CRI}container-type": "container",
        f"{_CRI}container-name": config.metadata.name,
        f"{_CRI}image-name": image,
        f"{_CRI}sandbox-id": sandbox_id,
    }


def for_sandboxed(names: dict[str, str], *, info: EngineInfo, runtime: str, api_version: ApiVersion) -> dict[str, str]:
    """Return the names for an OCI runtime other than runc, which finds the sandbox of a container by them.

    gVisor and Kata make a sandbox for each container that has none. runc needs no names. Engines before
    ANNOTATIONS_API pass none on. The containerd-shim of a runtime that Docker runs like runc would serve all containers
    with one sandbox-id, beyond the limits of `shim.spec.shim_group`: so each container is in a separate group.
    """
    if has_runc_shim(info, runtime) or api_version < ANNOTATIONS_API:
        return {}
    return {**names, SHIM_GROUP: secrets.token_hex(16)}


def _select(annotations: Mapping[str, str], *, patterns: Iterable[str], have: ApiVersion) -> dict[str, str]:
    expressions = [expression_from_wildcard(pattern) for pattern in patterns]
    named = {key: text for key, text in annotations.items() if any(each.fullmatch(key) for each in expressions)}
    passed = {key: text for key, text in named.items() if key != SHIM_GROUP}
    for key in sorted(passed):
        require_api(have, needs=ANNOTATIONS_API, what=f"config.annotations {key!r} for the OCI runtime")
    return passed
