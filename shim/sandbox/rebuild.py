"""The checkpoint of a sandbox whose own is lost, or of a legacy (cri-dockerd) pod.

It comes from the CNI result cache, which is in the format that all runtimes on the CNI reference library share: it
knows configuration, arguments and result of the ADD, which is all that DEL needs. A pod on the node's network needs
none of that.
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
"""Network of that name: runtimes that bring `lo` up by a plugin cache that as well."""

IPAM: JsonObject = {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8"}]]}
"""host-local wants a range, also in a DEL, which it does by container id alone."""

KUBENET: JsonObject = {
    "cniVersion": "0.1.0",
    "name": "kubenet",
    "plugins": [{"type": "bridge", "bridge": "cbr0", "ipMasq": False, "ipam": IPAM}],
}
"""What DEL needs for a pod of kubenet whose entry in the CNI cache is lost, or elsewhere."""

log = structlog.get_logger(__name__)


def checkpoint_of(rt: Runtime, record: SandboxRecord) -> SandboxCheckpoint | None:
    """Return the sandbox's checkpoint, rebuilt if it has none; None when no network of it is known."""
    checkpoint = rt.checkpoints.get(record.id)
    if checkpoint is not None or pod.host_network(record.config):
        return checkpoint
    attachments = cached_attachments(rt.config.cni_cache_dir, container_id=record.id)
    pods = [found for found in attachments if found.ifname == INTERFACE and found.network != LOOPBACK]
    if record.legacy and not pods and (record.id, INTERFACE) in leased(KUBENET):
        pods = [Attachment(conflist=KUBENET, container_id=record.id, netns="", ifname=INTERFACE)]
    return _rebuild(rt, record, pods[0]) if pods else None


def recover_checkpoint(rt: Runtime, record: SandboxRecord) -> SandboxCheckpoint | None:
    """Rebuild the lost checkpoint of a sandbox that is to go on; None when nothing is known of its network.

    On the node's network, and with loopback alone, there is nothing to know: a pod whose pause container runs is ready,
    and nothing of it can leak. Without a checkpoint it would be SANDBOX_NOTREADY, and a kubelet would end it:
    kube-apiserver and etcd are such pods.
    """
    if not pod.host_network(record.config):
        checkpoint = checkpoint_of(rt, record)
        if checkpoint is not None or rt.config.network_plugin != "none":
            return checkpoint
    if record.legacy or not record.state.running:
        return None  # of a legacy pod, pause alone decides
    return SandboxCheckpoint(
        sandbox_id=record.id,
        config=labels.config_as_dict(record.config),
        runtime_handler=record.runtime_handler,
        created_at=record.state.created_at,
        ready=True,
        pause_started_at=record.state.started_at,
    )


def _rebuild(rt: Runtime, record: SandboxRecord, attachment: Attachment) -> SandboxCheckpoint:
    # A legacy pod's path may be /proc/<pid>/ns/net, and that pid may have been reused: ours is the only safe one.
    known = msgspec.structs.asdict(attachment) | {"netns": str(netns_path(rt, record.id))}
    checkpoint = SandboxCheckpoint(
        sandbox_id=record.id,
        config=labels.config_as_dict(record.config),
        runtime_handler=record.runtime_handler,
        created_at=record.state.created_at,
        # Without a result the server ended in the middle of the ADD, and no client got the id of the sandbox.
        ready=attachment.owner is None or attachment.result is not None,
        network=msgspec.convert(known, NetworkIntent),
    )
    if not pod.addresses(checkpoint):
        log.warning("no address of pod sandbox in CNI cache", sandbox=record.id, result=attachment.result)
    return checkpoint
