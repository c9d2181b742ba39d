"""Brings pods up and takes them down as a kubelet does: it lists, does the next step, and retries after failures.

The attempt number is one more than the newest listed sandbox or container has. So a step that failed without a trace is
retried with the same attempt number.
"""

import time
from collections.abc import Callable
from typing import Any

import grpc

from integration.chaos.logs import log_violations
from integration.chaos.pods import UID, ChaosPod, Made
from integration.chaos.target import Target
from integration.cri import Cri
from shim.api.v1 import api_pb2 as pb

READ_SECONDS = 5.0
CHANGE_SECONDS = 20.0
"""Timeout of an RPC that changes something, shorter than a kubelet's; after it the RPC is repeated."""
GRACE_SECONDS = 2
_AGAIN_SECONDS = 0.5
_NEXT_SECONDS = 0.1
"""Pause between two steps of a pod."""
_EXEC_SECONDS = 3


class Calm:
    """Holds when the last fault ended, and how long pods may take to converge afterwards."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def begin(self) -> None:
        """Note that all faults have ended."""
        self._since = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Whether all faults have ended."""
        return self._since is not None

    @property
    def is_over(self) -> bool:
        """Whether the time to converge has passed."""
        return self._since is not None and time.monotonic() > self._since + self._seconds

    def __str__(self) -> str:
        return f"within {self._seconds:g} s after the last fault"


class Kubelet:
    """The worker of a pod. Appends violations to `found`."""

    def __init__(self, cri: Cri, target: Target, pod: ChaosPod, found: list[str]) -> None:
        self._cri = cri
        self._target = target
        self._pod = pod
        self._found = found

    def bring_up(self, calm: Calm, *, after: float = 0.0) -> None:
        """Bring the pod up, starting after `after` seconds; gives up when `calm` is over."""
        time.sleep(after)
        self._until_done(self._sync, calm, "up")

    def take_down(self, calm: Calm, *, after: float = 0.0) -> None:
        """Take the pod down, starting after `after` seconds."""
        time.sleep(after)
        self._until_done(self._remove, calm, "down")

    def _until_done(self, step: Callable[[], bool], calm: Calm, goal: str) -> None:
        pod = self._pod
        while not calm.is_over:
            try:
                if step():
                    return
                time.sleep(_NEXT_SECONDS)
            except grpc.RpcError as error:
                pod.error = _describe(error)
                time.sleep(_AGAIN_SECONDS)
        last = pod.error or "none"
        self._found.append(f"pod {pod.name} ({pod.kind}) is not {goal} {calm}; the last error was: {last}")

    # Up

    def _sync(self) -> bool:
        """Do the next step; return True when nothing is left to do."""
        sandboxes = self._sandboxes()
        newest = sandboxes[-1] if sandboxes else None
        if newest is None or newest.state != pb.SANDBOX_READY:
            for sandbox in sandboxes:
                self._stop(sandbox)
            self._run(newest.metadata.attempt + 1 if newest else 0)
            return False
        self._pod.sandboxes.add(newest.id)  # RunPodSandbox may have succeeded after the client's timeout
        for old in sandboxes[:-1]:
            self._stop(old)
            self._delete(old)
        containers = self._containers(newest.id)
        self._forget_removed({container.id for container in containers})
        advanced = [self._advance(newest, name, containers) for name in self._pod.containers]
        if any(advanced):
            return False
        self._exec(newest.id)
        return len(sandboxes) == 1

    def _forget_removed(self, listed: set[str]) -> None:
        for gone in self._target.removed_by_hand & self._pod.made.keys() - listed:
            del self._pod.made[gone]

    def _run(self, attempt: int) -> None:
        request = pb.RunPodSandboxRequest(config=self._pod.config(attempt))
        sandbox = self._cri.runtime.RunPodSandbox(request, timeout=CHANGE_SECONDS).pod_sandbox_id
        self._pod.sandboxes.add(sandbox)
        self._pod.ever.add(sandbox)

    def _advance(self, sandbox: pb.PodSandbox, name: str, listed: list[pb.Container]) -> bool:
        """Bring a container closer to its goal; return whether anything had to be done."""
        mine = sorted((c for c in listed if c.metadata.name == name), key=lambda c: c.metadata.attempt)
        for dead in mine[:-1]:
            self._stop_container(dead)
            self._delete_container(dead)
        newest = mine[-1] if mine else None
        if newest is not None and newest.id not in self._pod.made:
            self._adopt(newest)
        if newest is not None and newest.state == pb.CONTAINER_RUNNING:
            return self._pod.runs_to_completion(name)
        if newest is not None and self._pod.runs_to_completion(name) and newest.state == pb.CONTAINER_EXITED:
            request = pb.ContainerStatusRequest(container_id=newest.id)
            if self._cri.runtime.ContainerStatus(request, timeout=READ_SECONDS).status.exit_code == 0:
                return False
        if newest is not None and newest.state == pb.CONTAINER_UNKNOWN:
            self._stop_container(newest)
        attempt = self._pod.attempts.get(name, 0)
        self._start(sandbox, name, max(attempt, newest.metadata.attempt + 1) if newest else attempt)
        return True

    def _adopt(self, container: pb.Container) -> None:
        """Track a container whose CreateContainer succeeded after the client's timeout."""
        name, attempt = container.metadata.name, container.metadata.attempt
        self._pod.made[container.id] = Made(self._pod.logs / name / f"{attempt}.log", losses=-1)
        self._pod.attempts[name] = max(self._pod.attempts.get(name, 0), attempt + 1)

    def _start(self, sandbox: pb.PodSandbox, name: str, attempt: int) -> None:
        pod, losses = self._pod, self._target.losses
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox.id,
            config=pod.container(name, attempt),
            sandbox_config=pod.config(sandbox.metadata.attempt),
        )
        container = self._cri.runtime.CreateContainer(request, timeout=CHANGE_SECONDS).container_id
        pod.made[container] = Made(pod.logs / name / f"{attempt}.log", losses)
        pod.ever.add(container)
        pod.attempts[name] = attempt + 1
        self._cri.runtime.StartContainer(pb.StartContainerRequest(container_id=container), timeout=CHANGE_SECONDS)

    def _exec(self, sandbox: str) -> None:
        """Run a command in a container as a probe does: it may fail, but must not return wrong output."""
        running = [c for c in self._containers(sandbox) if c.state == pb.CONTAINER_RUNNING]
        for container in running[:1]:
            request = pb.ExecSyncRequest(container_id=container.id, cmd=["echo", "alive"], timeout=_EXEC_SECONDS)
            cuts = self._target.link.cuts
            answer = self._cri.runtime.ExecSync(request, timeout=CHANGE_SECONDS)
            # A cut connection looks like the end of the output.
            whole = cuts == self._target.link.cuts
            if answer.exit_code == 0 and answer.stdout != b"alive\n" and whole:
                self._found.append(f"exec in {container.id[:12]} answered {answer.stdout!r}")

    # Down

    def _remove(self) -> bool:
        sandboxes = self._sandboxes()
        for sandbox in sandboxes:
            self._stop(sandbox)
        for sandbox in sandboxes:
            self._delete(sandbox)
        return not self._sandboxes()

    def _stop(self, sandbox: pb.PodSandbox) -> None:
        for container in self._containers(sandbox.id):
            self._stop_container(container)
        request = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
        self._cri.runtime.StopPodSandbox(request, timeout=CHANGE_SECONDS)

    def _delete(self, sandbox: pb.PodSandbox) -> None:
        for container in self._containers(sandbox.id):
            self._delete_container(container)
        self._pod.sandboxes.discard(sandbox.id)
        request = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
        self._cri.runtime.RemovePodSandbox(request, timeout=CHANGE_SECONDS)

    def _stop_container(self, container: pb.Container) -> None:
        if container.state in (pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN):
            request = pb.StopContainerRequest(container_id=container.id, timeout=GRACE_SECONDS)
            self._cri.runtime.StopContainer(request, timeout=CHANGE_SECONDS + GRACE_SECONDS)

    def _delete_container(self, container: pb.Container) -> None:
        made = self._pod.made.get(container.id)
        request = pb.ContainerStatusRequest(container_id=container.id)
        status = self._cri.runtime.ContainerStatus(request, timeout=READ_SECONDS).status
        if made is not None and status.state == pb.CONTAINER_EXITED:
            self._found += log_violations(
                made.log,
                self._target.engine,
                container.id,
                contiguous=made.losses == self._target.losses,
                once=container.id not in self._target.restarted_by_hand,
            )
        self._pod.made.pop(container.id, None)
        remove = pb.RemoveContainerRequest(container_id=container.id)
        self._cri.runtime.RemoveContainer(remove, timeout=CHANGE_SECONDS)

    # Lists

    def _sandboxes(self) -> list[pb.PodSandbox]:
        known = set(self._pod.sandboxes)
        request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector={UID: self._pod.uid}))
        listed = self._cri.runtime.ListPodSandbox(request, timeout=READ_SECONDS).items
        self._missing("sandbox", known - {sandbox.id for sandbox in listed})
        self._pod.ever.update(sandbox.id for sandbox in listed)
        return sorted(listed, key=lambda sandbox: sandbox.metadata.attempt)

    def _containers(self, sandbox: str) -> list[pb.Container]:
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=sandbox))
        listed = list(self._cri.runtime.ListContainers(request, timeout=READ_SECONDS).containers)
        self._pod.ever.update(container.id for container in listed)
        return listed

    def _missing(self, what: str, ids: set[str]) -> None:
        for each in ids:
            self._pod.sandboxes.discard(each)
            self._found.append(f"a list omits {what} {each[:12]} of pod {self._pod.name}, which exists")


def _describe(error: grpc.RpcError) -> str:
    failed: Any = error
    return f"{failed.code().name} {failed.details()}"
