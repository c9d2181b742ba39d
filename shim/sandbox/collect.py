"""Clean-up of networks that belong to no pod any more, at the start and every `cni_gc_interval`.

Pods release what they have when they are stopped. This is for what is left when no call can ask for that any more: the
state directory was cleared under pods, or a plugin let something go too late. What this server made is known by the CNI
cache, which names it (`shim.cni.cache.Owner`) before a namespace is pinned or ADD is run. All else belongs to another
runtime, whatever it is called, and stays.
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
from shim.sandbox.network import delete, engine_of, netns_path

WIDTH = 8
"""Attachments that are cleaned up side by side."""
LOCK_SECONDS = 1.0
"""How long the lock of a sandbox is waited for. Who holds it works on that very sandbox."""
ORPHAN_SECONDS = 60.0
"""For the DEL of one attachment."""
GC_SECONDS = 30.0
"""For the GC of one network, during which pods that are being made wait."""

OTHER_CACHES = (Path("/var/lib/cni"), Path("/var/lib/cni/cache"))
"""Where others with the CNI reference library keep their attachments: containerd, CRI-O and podman; cri-dockerd."""

log = structlog.get_logger(__name__)


def collect_networks(rt: Runtime) -> bool:
    """Run DEL for attachments of this server without a pod, unpin their namespaces, and run GC where plugins know it.

    Unavailable while Docker is away: then it is not known which pods there are. What fails is logged; False if that was
    the DEL of an attachment, which the next call tries again.
    """
    orphans = own_attachments(rt.config.cni_cache_dir, docker=engine_of(rt), excluding=_pods(rt))
    released = gather([partial(_try_release, rt, orphan) for orphan in orphans], width=WIDTH)
    for conflist in _networks(rt).values():
        if knows_gc(conflist):
            _collect(rt, conflist)
    return all(released)


def _pods(rt: Runtime) -> set[str]:
    """Return the ids of all sandboxes, also of those of which only a checkpoint is left: their Remove releases them."""
    return {record.id for record in rt.view.sandboxes()} | {known.sandbox_id for known in rt.checkpoints.all()}


def _try_release(rt: Runtime, orphan: Attachment) -> bool:
    assert orphan.owner is not None  # noqa: S101 - that is how it was found
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
    """Whether there still is no such pod; the caller holds the lock of its name, so that none is being made.

    Docker is asked, too: the network of a container that runs must not go because a list came without it.
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
    # Its directory may have been another setting then.
    if path.name != netns_path(rt, orphan.container_id).name:
        raise FailedPrecondition(f"its network namespace {path} has not the name of a pin of this server")
    delete(rt, orphan, forget=False)
    unpin(path)
    rt.cni.plugins.forget(orphan)  # at last: it is what a next try starts from
    log.info("released orphaned CNI attachment", sandbox=orphan.container_id, network=orphan.network)


def _networks(rt: Runtime) -> dict[str, JsonObject]:
    """Return the configuration of each network that is in force or has pods, by its name; the newest of each."""
    ready = sorted(rt.checkpoints.all(), key=lambda checkpoint: checkpoint.created_at)
    found = {str(known.network.conflist["name"]): known.network.conflist for known in ready if known.network}
    chosen = rt.cni.networks.status().ready and rt.cni.networks.chosen()
    return {**found, chosen.name: chosen.conflist} if chosen else found


def _collect(rt: Runtime, conflist: JsonObject) -> None:
    name = conflist["name"]
    try:
        with deadline.bound(GC_SECONDS):
            if not rt.cni.plugins.run_gc(conflist, partial(_valid, rt, conflist)):
                log.info("CNI GC postponed: ADD or DEL running all the time", network=name)
    except ShimError as error:
        log.warning("CNI GC failed", network=name, error=error)


def _valid(rt: Runtime, conflist: JsonObject) -> Collection[tuple[str, str]]:
    """Return container id and interface of each attachment to a network that must stay.

    Those of pods that have not been released, and whatever another runtime has on a network of the same name: in its
    cache, or in the reservations of host-local alone.
    """
    name = conflist["name"]
    known = rt.checkpoints.all()
    pods = {
        (pod.sandbox_id, pod.network.ifname)
        for pod in known
        if pod.network and not pod.network.released and pod.network.conflist["name"] == name
    }
    orphans = own_attachments(rt.config.cni_cache_dir, docker=engine_of(rt), excluding=())
    ours = {pod.sandbox_id for pod in known} | {orphan.container_id for orphan in orphans}
    caches = {rt.config.cni_cache_dir, *OTHER_CACHES}
    attached = leased(conflist).union(*(attached_to(cache, network=name) for cache in caches))
    return pods | {(container, ifname) for container, ifname in attached if container not in ours}
