"""Rebuilds the lost checkpoint of a sandbox, or creates the checkpoint of a cri-dockerd pod.

The CNI result cache, whose format all users of the CNI reference library share, has all that DEL needs: configuration,
arguments and result of the ADD. A pod on the host network needs none of this.
"""

import msgspec
import structlog

from shim import pod
from shim.checkpoint.model import NetworkIntent, SandboxCheckpoint
from shim.cni.arguments import INTERFACE
from shim.cni.cache import Attachment, cached_attachments
from shim.cni.leases import leased
from shim.cni.plugin import JsonObject
from shim.domain import labels
from shim.runtime import Runtime
from shim.sandbox.network import netns_path
from shim.view.records import SandboxRecord

LOOPBACK = "cni-loopback"
"""Network name of `lo` in the cache of runtimes that bring `lo` up with a plugin."""

IPAM: JsonObject = {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8"}]]}
"""host-local requires a range even for DEL, which needs only the container id."""

KUBENET: JsonObject = {
    "cniVersion": "0.1.0",
    "name": "kubenet",
    "plugins": [{"type": "bridge", "bridge": "cbr0", "ipMasq": False, "ipam": IPAM}],
}
"""Configuration for the DEL of a kubenet pod without an entry in the CNI cache."""

log = structlog.get_logger(__name__)


def checkpoint_of(rt: Runtime, record: SandboxRecord) -> SandboxCheckpoint | None:
    """Return the sandbox's checkpoint, rebuilt if lost; None if the network is unknown."""
    checkpoint = rt.checkpoints.get(record.id)
    if checkpoint is not None or pod.host_network(record.config):
        return checkpoint
    attachments = cached_attachments(rt.config.cni_cache_dir, container_id=record.id)
    pods = [found for found in attachments if found.ifname == INTERFACE and found.network != LOOPBACK]
    if record.legacy and not pods and (record.id, INTERFACE) in leased(KUBENET):
        pods = [Attachment(conflist=KUBENET, container_id=record.id, netns="", ifname=INTERFACE)]
    return _rebuild(rt, record, pods[0]) if pods else None


def recover_checkpoint(rt: Runtime, record: SandboxRecord) -> SandboxCheckpoint | None:
    """Rebuild the lost checkpoint of a sandbox that should keep running; None if its network is unknown.

    A pod on the host network, or with only `lo`, cannot leak a network. It is ready if pause runs. Without a checkpoint
    it would be SANDBOX_NOTREADY, and the kubelet would end it, for example kube-apiserver and etcd.
    """
    if not pod.host_network(record.config):
        checkpoint = checkpoint_of(rt, record)
        if checkpoint is not None or rt.config.network_plugin != "none":
            return checkpoint
    if record.legacy or not record.state.running:
        return None  # a cri-dockerd pod is ready if pause runs
    return SandboxCheckpoint(
        sandbox_id=record.id,
        config=labels.config_as_dict(record.config),
        runtime_handler=record.runtime_handler,
        created_at=record.state.created_at,
        ready=True,
        pause_started_at=record.state.started_at,
    )


def _rebuild(rt: Runtime, record: SandboxRecord, attachment: Attachment) -> SandboxCheckpoint:
    # cri-dockerd may record /proc/<pid>/ns/net, whose pid may have been reused. Use the server's path instead.
    known = msgspec.structs.asdict(attachment) | {"netns": str(netns_path(rt.config, record.id))}
    checkpoint = SandboxCheckpoint(
        sandbox_id=record.id,
        config=labels.config_as_dict(record.config),
        runtime_handler=record.runtime_handler,
        created_at=record.state.created_at,
        # Without a result, the server was killed during the ADD, and no client got the id of the sandbox.
        ready=attachment.owner is None or attachment.result is not None,
        network=msgspec.convert(known, NetworkIntent),
    )
    if not pod.addresses(checkpoint):
        log.warning("no address of pod sandbox in CNI cache", sandbox=record.id, result=attachment.result)
    return checkpoint
