"""The conditions that must hold once all faults have ended: each check returns its violations."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import docker
import grpc
import msgspec
import requests

from integration.chaos.logs import log_violations
from integration.chaos.pods import UID, ChaosPod
from integration.chaos.target import BRIDGE, Target
from integration.cri import Cri
from integration.node.commands import NodeError, run
from integration.node.engine import has_link
from integration.node.leak_check import NodeSnapshot
from integration.node.processes import (
    EXEC_PROGRAM,
    HELPER,
    LOG_PROCESS,
    Size,
    children,
    command,
    exec_program_of,
    helper_of,
    processes_of,
    size,
)
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.root import ORDERS

READ_SECONDS = 5.0
MORE_THREADS = 30
"""Bound on additional threads, compared to the idle server: RPC workers, checks and watches that were just in use."""
MORE_DESCRIPTORS = 60
MORE_MIB = 60.0
_IP_SECONDS = 60.0
_MODULES = (LOG_PROCESS, HELPER, EXEC_PROGRAM)
_UNEXPECTED = (b"Traceback (most recent call last)", b'"exception":')


class Invariants:
    """The checks of a node."""

    def __init__(self, target: Target, cri: Cri) -> None:
        """Record the node without pods, to compare with at the end."""
        self._target = target
        self._cri = cri
        self._before: NodeSnapshot = target.snapshot()
        self._idle = {"server": size(target.server.daemon.pid)}
        if (log_process := target.log_process()) is not None:
            self._idle["log process"] = size(log_process)
        if (helper := target.helper()) is not None:
            self._idle["helper process"] = size(helper)
        ours = {log_process, helper, exec_program_of(target.server.daemon.pid)}
        self._of_others = {pid for module in _MODULES for pid in processes_of(module)} - ours
        """Processes of other servers in the same namespaces."""
        self._log_read = 0

    def violations(self, pods: Sequence[ChaosPod]) -> list[str]:
        """Return how the node differs from the state in which exactly these pods are up."""
        try:
            sandboxes = list(self._cri.runtime.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=READ_SECONDS).items)
            containers = list(
                self._cri.runtime.ListContainers(pb.ListContainersRequest(), timeout=READ_SECONDS).containers
            )
            return [
                *self._of_pods(pods, sandboxes, containers),
                *self._of_docker(sandboxes, containers),
                *self._of_network(pods, sandboxes),
                *self._of_state(sandboxes),
                *self._of_orders(pods, sandboxes, containers),
                *self._of_mounts(),
                *(f"checkpoint leftover: {path}" for path in sorted(self._target.checkpoint_files)),
                *self._of_processes(),
            ]
        except grpc.RpcError as error:
            failed: Any = error
            return [f"a list RPC failed: {failed.code().name} {failed.details()}"]
        except (docker.errors.APIError, requests.RequestException) as error:
            return [f"Docker does not answer: {error}"]

    def final_violations(self) -> list[str]:
        """Return everything that is left after all pods are gone."""
        removed = {f"state: {ORDERS}/{each}" for each in self._target.removed_by_hand}
        added = self._before.added(self._target.snapshot())
        return [f"left behind: {each}" for each in added if each not in removed]

    def log_violations(self, pods: Sequence[ChaosPod]) -> list[str]:
        """Return what is wrong with the logs of all containers that exist."""
        running = {
            container.id
            for container in self._cri.runtime.ListContainers(
                pb.ListContainersRequest(), timeout=READ_SECONDS
            ).containers
            if container.state == pb.CONTAINER_RUNNING
        }
        return [
            violation
            for pod in pods
            for container, made in list(pod.made.items())
            for violation in log_violations(
                made.log,
                self._target.engine,
                container,
                contiguous=made.losses == self._target.losses,
                once=container not in self._target.restarted_by_hand,
                ended=container not in running,
            )
        ]

    def unexpected(self) -> list[str]:
        """Return the unexpected exceptions that the server has logged since the last call."""
        with self._target.server.daemon.log.open("rb") as log:
            log.seek(self._log_read)
            lines = log.readlines()
            self._log_read = log.tell()
        return [
            f"unexpected exception in the server's log: {line[:600].decode(errors='replace').strip()}"
            for line in lines
            if any(mark in line for mark in _UNEXPECTED)
        ]

    # Checks of single parts

    def _of_pods(
        self, pods: Sequence[ChaosPod], sandboxes: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> list[str]:
        found = []
        wanted = {pod.uid: pod for pod in pods}
        by_uid: dict[str, list[pb.PodSandbox]] = {}
        for sandbox in sandboxes:
            by_uid.setdefault(sandbox.labels[UID], []).append(sandbox)
        found += [f"sandbox of removed pod {uid}" for uid in sorted(by_uid.keys() - wanted.keys())]
        for uid, pod in wanted.items():
            mine = by_uid.get(uid, [])
            if [sandbox.state for sandbox in mine] != [pb.SANDBOX_READY]:
                states = ", ".join(pb.PodSandboxState.Name(sandbox.state) for sandbox in mine) or "none"
                found.append(f"pod {pod.name} ({pod.kind}) should have exactly one ready sandbox: {states}")
                continue
            listed = [container for container in containers if container.pod_sandbox_id == mine[0].id]
            found += self._of_containers(pod, listed)
        ids = {sandbox.id for sandbox in sandboxes}
        found += [f"container {each.id[:12]} has no sandbox" for each in containers if each.pod_sandbox_id not in ids]
        return found

    def _of_containers(self, pod: ChaosPod, listed: Sequence[pb.Container]) -> list[str]:
        states = sorted((each.metadata.name, each.state) for each in listed)
        expected = sorted(
            (name, pb.CONTAINER_EXITED if pod.runs_to_completion(name) else pb.CONTAINER_RUNNING)
            for name in pod.containers
        )
        if states == expected:
            return []
        said = ", ".join(f"{name} {pb.ContainerState.Name(state)}" for name, state in states) or "none"
        return [f"containers of pod {pod.name} ({pod.kind}): {said}"]

    def _of_docker(self, sandboxes: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> list[str]:
        rows = {str(row["Id"]): str(row["State"]) for row in self._target.engine.api.containers(all=True)}
        listed = {each.id: each.state == pb.SANDBOX_READY for each in sandboxes}
        listed |= {each.id: each.state == pb.CONTAINER_RUNNING for each in containers}
        found = [
            f"Docker has container {each[:12]}, {rows[each]}, which the server does not list"
            for each in rows.keys() - listed
        ]
        found += [f"{each[:12]} is listed but does not exist in Docker" for each in listed.keys() - rows.keys()]
        found += [
            f"{each[:12]} is {rows[each]} in Docker but not in the list"
            for each in rows.keys() & listed
            if (rows[each] == "running") is not listed[each]
        ]
        return found

    def _of_network(self, pods: Sequence[ChaosPod], sandboxes: Sequence[pb.PodSandbox]) -> list[str]:
        on_network = {pod.uid for pod in pods if pod.has_network}
        ids = {sandbox.id for sandbox in sandboxes if sandbox.labels[UID] in on_network}
        addresses = []
        for sandbox in sorted(ids):
            request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
            addresses.append(self._cri.runtime.PodSandboxStatus(request, timeout=READ_SECONDS).status.network.ip)
        now = self._target.snapshot()
        links = _ports()
        return [
            *_difference("addresses in IPAM", now.leases, set(addresses)),
            *_difference("pinned namespaces", now.namespaces, {f"cri-{each}" for each in ids}),
            *([f"duplicate addresses: {addresses}"] if len(set(addresses)) != len(addresses) else []),
            *([f"{len(links)} veth on the bridge for {len(ids)} pods"] if len(links) != len(ids) else []),
        ]

    def _of_state(self, sandboxes: Sequence[pb.PodSandbox]) -> list[str]:
        state, ids = self._target.dirs.state, {sandbox.id for sandbox in sandboxes}
        checkpoints = {path.name.removesuffix(".json") for path in (state / "sandboxes").glob("*")}
        found = _difference("checkpoints", checkpoints, ids)
        files = len(list((state / "resolv-conf").glob("*")))  # their names exist before the sandbox id
        return found if files == len(ids) else [*found, f"{files} resolv.conf files for {len(ids)} sandboxes"]

    def _of_orders(
        self, pods: Sequence[ChaosPod], sandboxes: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> list[str]:
        """Compare the orders for the OCI runtime with the containers in user namespaces.

        Orders of containers removed by hand stay until the server's next start.
        """
        own = {pod.uid for pod in pods if pod.has_own_users}
        ids = {sandbox.id for sandbox in sandboxes if sandbox.labels[UID] in own}
        ids |= {container.id for container in containers if container.pod_sandbox_id in ids}
        # A prune notes each container that it may remove, though some of them start before the prune reaches them.
        return _difference("orders", self._target.orders - (self._target.removed_by_hand - ids), ids)

    def _of_mounts(self) -> list[str]:
        now = self._target.snapshot()
        ours = (str(self._target.engine.home), str(self._target.dirs.netns))
        return [f"mount {path}" for path in sorted(now.mounts - self._before.mounts) if not path.startswith(ours)]

    def _of_processes(self) -> list[str]:
        server, log_process = self._target.server.daemon.pid, self._target.log_process()
        known = {log_process, helper_of(server), exec_program_of(server)}
        others = [pid for pid in children(server) if pid not in known]
        found = [f"the server has a child {pid}: {command(pid).decode()!r}" for pid in others]
        for module in _MODULES:
            left = processes_of(module) - known - self._of_others
            found += [f"process {pid} of {module.decode()} belongs to no server" for pid in sorted(left)]
        if log_process is None:
            return [*found, "no log process runs"]
        found += _too_large("server", size(server), self._idle["server"])
        if "log process" in self._idle:
            found += _too_large("log process", size(log_process), self._idle["log process"])
        helper = helper_of(server)
        if helper is not None and "helper process" in self._idle:
            found += _too_large("helper process", size(helper), self._idle["helper process"])
        return found


def _ports() -> list[object]:
    """Return the interfaces on the bridge; none before the first pod creates the bridge."""
    if not has_link(BRIDGE):
        return []
    shown = run(["ip", "-j", "link", "show", "master", BRIDGE], timeout=_IP_SECONDS)
    ports: list[object] = msgspec.json.decode(shown or "[]")
    return ports


def _difference(what: str, there: set[str] | frozenset[str], wanted: set[str]) -> list[str]:
    return [
        *(f"{what}: {each} belongs to no pod" for each in sorted(there - wanted)),
        *(f"{what}: {each or 'none'} is missing" for each in sorted(wanted - there)),
    ]


def _too_large(name: str, now: Size, idle: Size) -> list[str]:
    if (
        now.threads > idle.threads + MORE_THREADS
        or now.descriptors > idle.descriptors + MORE_DESCRIPTORS
        or now.rss_mib > idle.rss_mib + MORE_MIB
    ):
        return [f"the {name} uses {now}; idle it used {idle}"]
    return []


def sizes(target: Target) -> str:
    """Describe the sizes of the server and the log process."""
    with suppress(OSError, NodeError):
        log_process = target.log_process()
        of_logs = f"; log process {size(log_process)}" if log_process else ""
        return f"server {size(target.server.daemon.pid)}{of_logs}"
    return "unknown"
