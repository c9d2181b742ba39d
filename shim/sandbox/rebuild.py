"""The checkpoint of a sandbox whose own is lost, or that another shim made.

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
from shim.domain import labels
from shim.runtime import Runtime
from shim.sandbox.network import addresses, netns_path
from shim.view.records import SandboxRecord

LOOPBACK = "cni-loopback"
"""Network of that name: runtimes that bring `lo` up by a plugin cache that as well."""

log = structlog.get_logger(__name__)


def checkpoint_of(rt: Runtime, record: SandboxRecord) -> SandboxCheckpoint | None:
    """The sandbox's checkpoint, rebuilt where it has none; None when nothing is known of a network of it."""
    checkpoint = rt.checkpoints.get(record.id)
    if checkpoint is not None or pod.host_network(record.config):
        return checkpoint
    attachments = cached_attachments(rt.config.cni_cache_dir, container_id=record.id)
    pods = [found for found in attachments if found.ifname == INTERFACE and found.network != LOOPBACK]
    return _rebuilt(rt, record, pods[0]) if pods else None


def recovered_checkpoint(rt: Runtime, record: SandboxRecord) -> SandboxCheckpoint | None:
    """Rebuild the lost checkpoint of a sandbox that is to go on; None when nothing is known of its network.

    On the node's network there is nothing to know: a pod whose pause container runs is ready, and nothing of it can
    leak. Without a checkpoint it would be SANDBOX_NOTREADY, and a kubelet would end it: kube-apiserver and etcd are
    such pods.
    """
    if not pod.host_network(record.config):
        return checkpoint_of(rt, record)
    if record.foreign or not record.life.running:
        return None  # of another shim's, pause alone decides
    return SandboxCheckpoint(
        sandbox_id=record.id,
        config=labels.config_as_dict(record.config),
        runtime_handler=record.runtime_handler,
        created_at=record.life.created_at,
        ready=True,
        pause_started_at=record.life.started_at,
    )


def _rebuilt(rt: Runtime, record: SandboxRecord, attachment: Attachment) -> SandboxCheckpoint:
    # Another shim's path may be /proc/<pid>/ns/net, and that pid may be anybody's by now: ours is the only safe one.
    known = msgspec.structs.asdict(attachment) | {"netns": str(netns_path(rt, record.id))}
    checkpoint = SandboxCheckpoint(
        sandbox_id=record.id,
        config=labels.config_as_dict(record.config),
        runtime_handler=record.runtime_handler,
        created_at=record.life.created_at,
        ready=True,
        network=msgspec.convert(known, NetworkIntent),
    )
    if not addresses(checkpoint):
        log.warning("the CNI cache tells no address of a pod sandbox", sandbox=record.id, result=attachment.result)
    return checkpoint
