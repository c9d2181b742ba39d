"""NRI in the server: gives plugins the node's pods and containers, and reports exits that no RPC caused."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import structlog

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.container.plugins import tell_stopped
from shim.container.update import apply_update
from shim.daemon.background import background
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
"""Seconds to collect the pods and containers for a synchronization."""
UPDATE_SECONDS = 60.0
"""Seconds for the updates in one request of a plugin."""
_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


@contextmanager
def serving_plugins(rt: Runtime) -> Iterator[None]:
    """Accept connections of plugins, run the installed plugins, and report exits to them, inside the block."""
    config = rt.config
    rt.nri.start(NriNode(rt))
    with ExitStack() as serving:
        if not config.nri_disable_connections:
            serving.enter_context(Listener(config.nri_socket_path, rt.nri).serving())
        found = installed_plugins(config.nri_plugin_path, configurations=config.nri_plugin_config_path)
        serving.enter_context(running_plugins(found, rt.nri))
        serving.callback(rt.nri.stop)
        serving.enter_context(background(partial(_report_exits, rt), name="nri-ends"))
        yield


class NriNode:
    """The node as plugins see and change it."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def snapshot(self, *, first: bool) -> tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]]:
        """Return the pods, and the created or running containers, that plugins know of.

        With the `first` plugin, reset the record of what plugins know. Raise Unavailable while Docker is unavailable.
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
        """Apply updates; return those that failed and whose plugin does not ignore failures."""
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


def _report_exits(rt: Runtime, stopping: threading.Event) -> None:
    """Report containers that exit by themselves or are removed externally, while there are plugins."""
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
    with rt.view.follow() as changes:
        _tell_missed(rt)
        while rt.nri.active:
            _tell(rt, changes.wait_next())


def _tell_missed(rt: Runtime) -> None:
    """Report the containers that exited while no changes were followed."""
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
