"""UpdateRuntimeConfig."""

from shim.api.v1 import api_pb2 as pb
from shim.node.cni_conf import write_cni_conf
from shim.runtime import Runtime


def update_runtime_config(rt: Runtime, *, network_config: pb.NetworkConfig) -> None:
    """Take over the pod address ranges of this node; empty changes nothing.

    They are for plugins that declare `ipRanges`, and for the configuration that `cni_conf_template` asks for.
    """
    if network_config.pod_cidr:
        rt.cni.pod_cidr.update(network_config.pod_cidr)
        with rt.locks.cni_conf():
            write_cni_conf(rt.config, ranges=rt.cni.pod_cidr.ranges, call=rt.host_fs.call)
