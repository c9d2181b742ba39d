"""UpdateRuntimeConfig."""

from shim.api.v1 import api_pb2 as pb
from shim.node.cni_conf import write_cni_conf
from shim.runtime import Runtime


def update_runtime_config(rt: Runtime, *, network_config: pb.NetworkConfig) -> None:
    """Store the pod address ranges of this node, for CNI plugins with `ipRanges` and for `cni_conf_template`.

    An empty range changes nothing.
    """
    if network_config.pod_cidr:
        rt.cni.pod_cidr.update(network_config.pod_cidr)
        with rt.locks.cni_conf():
            write_cni_conf(rt.config, ranges=rt.cni.pod_cidr.ranges, call=rt.host_fs.call)
