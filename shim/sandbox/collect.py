"""Releases networks whose pod is gone, at the start and every `cni_gc_interval`.

A pod's network is released when the pod is stopped. This module releases networks that no call can release, because the
state directory was cleared while pods ran, or because a plugin did something late. The CNI cache records the owner of
each network (`shim.cni.cache.Owner`) before its namespace is pinned and ADD is run. Networks of other runtimes stay,
even if they have the same name.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import structlog

from shim.base import deadline
from shim.base.gather import gather
from shim.cni.cache import Attachment, attached_to, own_attachments
from shim.cni.leases import leased
from shim.cni.plugin import JsonObject
from shim.cni.plugins import knows_gc
from shim.domain.errors import FailedPrecondition, NotFound, ShimError
from shim.netns.pin import unpin
from shim.runtime import Runtime
from shim.sandbox.network import delete, docker_socket, netns_path

WIDTH = 8
"""Maximum attachments that are released in parallel."""
LOCK_SECONDS = 1.0
"""Maximum wait for the lock of a sandbox. The holder of the lock is working on the sandbox."""
ORPHAN_SECONDS = 60.0
"""Timeout of the DEL of an attachment."""
GC_SECONDS = 30.0
"""Timeout of the GC of a network. New pods wait for it."""

OTHER_CACHES = (Path("/var/lib/cni"), Path("/var/lib/cni/cache"))
"""CNI caches of other users of the CNI reference library: containerd, CRI-O and podman; cri-dockerd."""

log = structlog.get_logger(__name__)


def collect_networks(rt: Runtime) -> bool:
    """Run DEL for this server's attachments without a pod, unpin their namespaces, and run GC if plugins support it.

    Log failures. Return False if a DEL failed; the next call repeats it. Raise Unavailable while Docker is unavailable,
    because the pods are unknown then.
    """
    orphans = own_attachments(rt.config.cni_cache_dir, docker=docker_socket(rt.config), excluding=_pods(rt))
    released = gather([partial(_try_release, rt, orphan) for orphan in orphans], width=WIDTH)
    for conflist in _networks(rt).values():
        if knows_gc(conflist):
            _collect(rt, conflist)
    return all(released)


def _pods(rt: Runtime) -> set[str]:
    """Return the ids of all sandboxes, including sandboxes with only a checkpoint, which RemovePodSandbox releases."""
    return {record.id for record in rt.view.sandboxes()} | {known.sandbox_id for known in rt.checkpoints.all()}


def _try_release(rt: Runtime, orphan: Attachment) -> bool:
    assert orphan.owner is not None  # noqa: S101 - own_attachments selects by owner
    try:
        with deadline.bound(LOCK_SECONDS) as waiting, rt.locks.sandbox(orphan.owner.sandbox):
            waiting.restart(ORPHAN_SECONDS)
            if _is_orphan(rt, orphan):
                _release(rt, orphan)
    except ShimError as error:
        log.warning("failed to release orphaned CNI attachment", sandbox=orphan.container_id, error=error)
        return False
    return True


def _is_orphan(rt: Runtime, orphan: Attachment) -> bool:
    """Check again that the pod does not exist. The caller holds the lock of its name, so it is not being created.

    This also asks Docker, because a running container must not lose its network if it was missing in a list.
    """
    if orphan.container_id in _pods(rt):
        return False
    try:
        rt.engine.inspect_container(orphan.container_id)
    except NotFound:
        return True
    return False


def _release(rt: Runtime, orphan: Attachment) -> None:
    path = Path(orphan.netns)
    # Compare the name only, because the setting of the directory may have changed since.
    if path.name != netns_path(rt.config, orphan.container_id).name:
        raise FailedPrecondition(f"network namespace {path} was not pinned by this server")
    delete(rt, orphan, forget=False)
    unpin(path)
    rt.cni.plugins.forget(orphan)  # last, because a retry needs the entry
    log.info("released orphaned CNI attachment", sandbox=orphan.container_id, network=orphan.network)


def _networks(rt: Runtime) -> dict[str, JsonObject]:
    """Return the newest configuration of each network that is in use or has pods, by name."""
    ready = sorted(rt.checkpoints.all(), key=lambda checkpoint: checkpoint.created_at)
    found = {str(known.network.conflist["name"]): known.network.conflist for known in ready if known.network}
    chosen = rt.cni.networks.status().ready and rt.cni.networks.chosen()
    return {**found, chosen.name: chosen.conflist} if chosen else found


def _collect(rt: Runtime, conflist: JsonObject) -> None:
    name = conflist["name"]
    try:
        with deadline.bound(GC_SECONDS):
            if not rt.cni.plugins.run_gc(conflist, partial(_valid, rt, conflist)):
                log.info("CNI GC postponed: ADD or DEL in progress", network=name)
    except ShimError as error:
        log.warning("CNI GC failed", network=name, error=error)


def _valid(rt: Runtime, conflist: JsonObject) -> Collection[tuple[str, str]]:
    """Return container id and interface of each attachment to the network that GC must keep.

    These are the unreleased attachments of pods, and all attachments of other runtimes to a network of the same name:
    in their cache, or only in the reservations of host-local.
    """
    name = conflist["name"]
    known = rt.checkpoints.all()
    pods = {
        (pod.sandbox_id, pod.network.ifname)
        for pod in known
        if pod.network and not pod.network.released and pod.network.conflist["name"] == name
    }
    orphans = own_attachments(rt.config.cni_cache_dir, docker=docker_socket(rt.config), excluding=())
    ours = {pod.sandbox_id for pod in known} | {orphan.container_id for orphan in orphans}
    caches = {rt.config.cni_cache_dir, *OTHER_CACHES}
    attached = leased(conflist).union(*(attached_to(cache, network=name) for cache in caches))
    return pods | {(container, ifname) for container, ifname in attached if container not in ours}
