"""UpdateRuntimeConfig."""

from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime


def update_runtime_config(rt: Runtime, *, network_config: pb.NetworkConfig) -> None:
    """Take over the pod address ranges of this node, for plugins that declare `ipRanges`; empty changes nothing."""
    if network_config.pod_cidr:
        rt.cni.pod_cidr.update(network_config.pod_cidr)
