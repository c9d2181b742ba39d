"""NRI in the server: the node that plugins see and change, and the ends of containers that no RPC has caused."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import structlog

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.container.plugins import tell_stopped
from shim.container.update import apply_update
from shim.domain.errors import Cancelled, ShimError
from shim.hooks.containers import container_is_removed
from shim.hooks.messages import container_message, pod_message
from shim.nri.installed import installed_plugins, running_plugins
from shim.nri.listener import Listener
from shim.runtime import Runtime
from shim.sandbox.find import sandboxes
from shim.view.changes import DELETED, STOPPED
from shim.view.records import Change, ContainerRecord

KNOWN_SECONDS = 10.0
"""For the pods and containers of a synchronization to be known."""
UPDATE_SECONDS = 60.0
"""For the updates that a plugin asks for at a time."""
_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


@contextmanager
def serving_plugins(rt: Runtime) -> Iterator[None]:
    """Let plugins connect, and run those that are installed, inside the block."""
    config = rt.config
    rt.nri.start(NriNode(rt))
    with ExitStack() as serving:
        if not config.nri_disable_connections:
            serving.enter_context(Listener(config.nri_socket_path, rt.nri).serving())
        found = installed_plugins(config.nri_plugin_path, configurations=config.nri_plugin_config_path)
        serving.enter_context(running_plugins(found, rt.nri))
        serving.callback(rt.nri.stop)
        yield


class NriNode:
    """What plugins see and change of this node."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def snapshot(self, *, first: bool) -> tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]]:
        """Return the pods, and the containers that are created or run, of which plugins have been told.

        With the `first` plugin begin to note what they are told. Raise Unavailable while Docker is.
        """
        rt, notified = self._rt, self._rt.nri.notified
        with deadline.bound(KNOWN_SECONDS):
            pods = {record.id: record for record in sandboxes(rt)}
            alive = [
                record
                for record in rt.view.containers()
                if record.state.phase in {pb.CONTAINER_CREATED, pb.CONTAINER_RUNNING}
            ]
            if first:
                notified.reset(running=[record.id for record in alive if record.state.running])
            return (
                [
                    pod_message(rt, record)
                    for record in pods.values()
                    if not rt.unseen.is_untold(record) and not notified.is_removed(record.id)
                ],
                [
                    container_message(rt, record, sandbox=pods.get(record.sandbox_id))
                    for record in alive
                    if not rt.unseen.is_untold(record) and not notified.is_removed(record.id)
                ],
            )

    def update(self, updates: Iterable[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Make updates, and return those that failed and may not."""
        failed = []
        with deadline.bound(UPDATE_SECONDS):
            for update in updates:
                try:
                    apply_update(self._rt, update)
                except ShimError as error:
                    log.info("update by NRI plugin failed", container=update.container_id, error=error)
                    if not update.ignore_failure:
                        failed.append(update)
        return failed


def tell_of_ends(rt: Runtime, stopping: threading.Event, scope: deadline.Scope) -> None:
    """Tell plugins of containers that end by themselves or are removed externally, as long as there are plugins."""
    with deadline.entered(scope):
        while not stopping.is_set():
            try:
                rt.nri.wait_for_plugins()
                _follow(rt)
            except Cancelled:
                return
            except ShimError as error:
                log.debug("changes for NRI plugins interrupted", error=error)
                stopping.wait(_RETRY_SECONDS)


def _follow(rt: Runtime) -> None:
    with rt.view.subscribe() as changes:
        _tell_missed(rt)
        while rt.nri.active:
            change = changes.wait_next()
            with changes.handing_over():
                pass  # no RPC waits for plugins here
            _tell(rt, change)


def _tell_missed(rt: Runtime) -> None:
    """Tell of what has ended while changes were not followed."""
    with rt.nri.turn():
        running = rt.nri.notified.running()
    for container_id in running:
        record = rt.view.last_known(container_id)
        if isinstance(record, ContainerRecord) and record.state.phase == pb.CONTAINER_EXITED:
            tell_stopped(rt, record)


def _tell(rt: Runtime, change: Change) -> None:
    record = change.record
    if not isinstance(record, ContainerRecord):
        return
    if change.kind == STOPPED:
        tell_stopped(rt, record)
    elif change.kind == DELETED:
        tell_stopped(rt, record)
        container_is_removed(rt, record)
        rt.nri.notified.forget(record.id)
