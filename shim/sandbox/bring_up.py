"""Starts a pause container and its network in parallel."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import structlog

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base.gather import gather
from shim.base.rollback import Rollback
from shim.checkpoint.model import SandboxCheckpoint
from shim.dockerd.starting_tasks import StartingTask
from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime
from shim.sandbox import dns, network
from shim.spec.defaults import docker_cgroup_parent
from shim.view.processes import is_in_container

LEAVES_NAMESPACE_API = (1, 48)
"""First Engine API of Engines that only touch `lo` in the network namespace of pause.

Older Engines disable IPv6 in a hook, on all interfaces that exist then.
"""

log = structlog.get_logger(__name__)


def bring_up(
    rt: Runtime, checkpoint: SandboxCheckpoint, *, config: pb.PodSandboxConfig, rollback: Rollback
) -> SandboxCheckpoint:
    """Write the checkpoint, start the pause container and run CNI ADD; return the checkpoint with the result.

    The checkpoint is written during the start, because the disk can take as long as Docker. ADD begins once the
    checkpoint is written and the network namespace is complete, usually before Docker answers the start (`TaskWatch`).
    If the namespace cannot be observed, ADD begins after Docker's answer. All steps have ended when this returns, so
    that a failure is undone as a whole.
    """
    if checkpoint.network is None:
        gather([partial(_write_down, rt, checkpoint), partial(_start, rt, checkpoint, config=config)])
        if not pod.host_network(config):
            network.prepare_unpinned_netns(rt.view.sandbox(checkpoint.sandbox_id))
        return checkpoint
    group = _group_to_read(rt, checkpoint, config=config)
    with rt.tasks.starting(checkpoint.sandbox_id, group=group) as task:
        start = _StartWithNetwork(rt, checkpoint, config=config, task=task, rollback=rollback)
        gather([start.write_down, start.start, start.attach_early])
    return start.attach()


class _StartWithNetwork:
    """The steps for a pod with a network; `write_down`, `start` and `attach_early` run in parallel."""

    def __init__(
        self,
        rt: Runtime,
        checkpoint: SandboxCheckpoint,
        *,
        config: pb.PodSandboxConfig,
        task: StartingTask,
        rollback: Rollback,
    ) -> None:
        self._rt = rt
        self._checkpoint = checkpoint
        self._config = config
        self._task = task
        self._rollback = rollback
        self._written = Future[None]()
        self._attached: SandboxCheckpoint | None = None

    def write_down(self) -> None:
        """Write the checkpoint."""
        try:
            _write_down(self._rt, self._checkpoint)
        except BaseException as error:
            self._written.set_exception(error)
            raise
        self._written.set_result(None)

    def start(self) -> None:
        """Start the pause container."""
        try:
            self._rt.engine.start_container(self._checkpoint.sandbox_id)
        finally:
            self._task.end()
        _finish_start(self._rt, self._checkpoint, config=self._config)

    def attach_early(self) -> None:
        """Attach the network before Docker answers the start, if the complete namespace can be observed."""
        pid = self._task.wait()
        if not pid or self._written.exception() is not None:
            return
        confirmed = partial(is_in_container, pid, self._checkpoint.sandbox_id)
        try:
            self._pin(pid, confirmed=confirmed)
        except FailedPrecondition as error:
            log.debug("cannot pin network namespace yet", sandbox=self._checkpoint.sandbox_id, error=error)
            return
        self._add()

    def attach(self) -> SandboxCheckpoint:
        """Return the checkpoint with the result of ADD. Run ADD now unless `attach_early` has run it.

        Raise FailedPrecondition unless pause runs in the pinned namespace.
        """
        pid = self._rt.view.sandbox(self._checkpoint.sandbox_id).state.pid
        if self._attached is not None:
            network.check_pin(self._checkpoint, pid=pid)
            return self._attached
        self._pin(pid)
        return self._add()

    def _pin(self, pid: int, *, confirmed: Callable[[], bool] = lambda: True) -> None:
        """Pin the network namespace of process `pid`, and prepare it for plugins."""
        self._rollback.undo("the pin of its network namespace", partial(network.unpin_netns, self._checkpoint))
        network.pin_netns(self._checkpoint, pid=pid, confirmed=confirmed)
        network.prepare_netns(self._checkpoint, sysctls=self._config.linux.sysctls)

    def _add(self) -> SandboxCheckpoint:
        """Run ADD. The rollback runs DEL, even if ADD fails."""
        self._rollback.undo("its network", partial(network.release, self._rt, self._checkpoint))
        self._attached = network.attach(self._rt, self._checkpoint)
        return self._attached


def _group_to_read(rt: Runtime, checkpoint: SandboxCheckpoint, *, config: pb.PodSandboxConfig) -> str:
    """Return the directory of pause's cgroup if ADD may begin as soon as the network namespace exists, else "".

    ADD must wait if runc or Docker will change settings of the namespace that a plugin may set. runc sets the pod's
    sysctls, and the two that Docker sets for all containers (`net.ipv4.ping_group_range`,
    `net.ipv4.ip_unprivileged_port_start`).
    """
    if rt.engine.api_version < LEAVES_NAMESPACE_API:
        return ""
    if config.linux.security_context.namespace_options.pid == pb.NODE:
        return ""  # runc's first process cannot be recognised in the host's pid namespace
    if any(name.startswith("net") for name in config.linux.sysctls):
        return ""
    if checkpoint.network is None or any("sysctl" in plugin for plugin in checkpoint.network.conflist["plugins"]):
        return ""
    parent = docker_cgroup_parent(config, systemd=rt.facts.systemd_cgroups)
    if not parent:
        return ""  # the client set no cgroup parent, and only Docker knows its default
    return rt.cgroups.directory(checkpoint.sandbox_id, parent=parent, systemd=rt.facts.systemd_cgroups)


def _write_down(rt: Runtime, checkpoint: SandboxCheckpoint) -> None:
    """Record the future network in the checkpoint and in the CNI cache: either record suffices to clean it up."""
    network.record_intent(rt, checkpoint)
    rt.checkpoints.put(checkpoint)


def _start(rt: Runtime, checkpoint: SandboxCheckpoint, *, config: pb.PodSandboxConfig) -> None:
    rt.engine.start_container(checkpoint.sandbox_id)
    _finish_start(rt, checkpoint, config=config)


def _finish_start(rt: Runtime, checkpoint: SandboxCheckpoint, *, config: pb.PodSandboxConfig) -> None:
    """Refresh the view of the pause container, and restore its resolv.conf."""
    rt.view.refresh_container(checkpoint.sandbox_id)
    # Docker may have written to the mounted resolv.conf while it set up its networking.
    record = rt.view.sandbox(checkpoint.sandbox_id)
    rt.tasks.learn(record.exec_root)
    dns.ensure_pod_resolv_conf(rt.config, config)
    dns.label_pod_resolv_conf(rt.config, record)
