"""Annotations that the node's administrator lets through to the OCI runtime.

Such a runtime may do anything for them (sandboxed runtimes take settings from them, runc sets properties of systemd
units), so none is passed that no setting names, nor the one by which the server gives each pod a containerd-shim: a pod
could join that of another.
"""

from collections.abc import Iterable, Mapping

from shim.api.v1 import api_pb2 as pb
from shim.config.wildcard import expression_from_wildcard
from shim.engine.connection import ApiVersion
from shim.engine.runc import SHIM_GROUP
from shim.engine.versions import require_api
from shim.runtime import Runtime

ANNOTATIONS_API = (1, 43)
"""First Engine API that passes annotations on; older ones drop them silently."""


def sandbox_annotations(rt: Runtime, config: pb.PodSandboxConfig) -> dict[str, str]:
    """Return the annotations of a pod that its pause container gets.

    Raise Unsupported, which names one that the Engine is too old for.
    """
    return _select(config.annotations, patterns=rt.config.pod_annotations, have=rt.engine.api_version)


def container_annotations(rt: Runtime, config: pb.ContainerConfig, *, pod: pb.PodSandboxConfig) -> dict[str, str]:
    """Return what a container gets: the pod's, overridden by its own."""
    own = _select(config.annotations, patterns=rt.config.container_annotations, have=rt.engine.api_version)
    return {**sandbox_annotations(rt, pod), **own}


def _select(annotations: Mapping[str, str], *, patterns: Iterable[str], have: ApiVersion) -> dict[str, str]:
    expressions = [expression_from_wildcard(pattern) for pattern in patterns]
    named = {key: text for key, text in annotations.items() if any(one.fullmatch(key) for one in expressions)}
    passed = {key: text for key, text in named.items() if key != SHIM_GROUP}
    for key in sorted(passed):
        require_api(have, needs=ANNOTATIONS_API, what=f"config.annotations {key!r} for the OCI runtime")
    return passed
