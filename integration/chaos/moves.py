"""Pods that are checkpointed and restored as other pods while parts of the node fail."""

import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import grpc

from integration.chaos.target import Target
from integration.cri import Cri, connected, container_config, pod_config
from integration.node.images import BUSYBOX
from integration.pods.kubelet import secured
from shim.api.v1 import api_pb2 as pb

LABEL = "moved"
CALL_SECONDS = 60
INSIST_SECONDS = 120.0
"""Bound on the removal of a pod: the server may be down."""
_AGAIN_SECONDS = 0.2
_COMMAND = ("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /count; sleep 0.05; done")


def move_pods(target: Target, seconds: float, random: Random) -> None:
    """Move one pod after the other for `seconds`. An RPC may fail; afterwards no pod and no container may be left."""
    until = time.monotonic() + seconds
    while True:
        with connected(target.server.socket) as cri:
            move = _Move(cri, target.moves / secrets.token_hex(4), containers=random.randint(1, 2))
            try:
                move.go()
                target.moved += 1
            except grpc.RpcError as error:
                move.error = error
            finally:
                move.remove_all()
        if time.monotonic() >= until:
            return


class _Move:
    """A pod, its checkpoint, and the pod restored from it."""

    def __init__(self, cri: Cri, directory: Path, *, containers: int) -> None:
        self._cri = cri
        self._directory = directory
        self._name = f"moved-{directory.name}"
        linux = secured(namespace_options=pb.NamespaceOption(pid=pb.CONTAINER))["linux"]
        self._configs = [
            container_config(f"c{number}", image=BUSYBOX, command=_COMMAND, linux=linux) for number in range(containers)
        ]
        self.error: grpc.RpcError | None = None

    def go(self) -> None:
        """Run the pod, checkpoint it, restore it and start its containers."""
        runtime = self._cri.runtime
        pod = self._pod("from")
        sandbox = runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=pod), timeout=CALL_SECONDS).pod_sandbox_id
        ids = []
        for config in self._configs:
            create = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=pod)
            ids.append(runtime.CreateContainer(create, timeout=CALL_SECONDS).container_id)
            runtime.StartContainer(pb.StartContainerRequest(container_id=ids[-1]), timeout=CALL_SECONDS)
        self._directory.mkdir(mode=0o700, parents=True)
        checkpoint = pb.CheckpointPodRequest(
            pod_sandbox_id=sandbox, output_path=str(self._directory), container_ids=ids
        )
        runtime.CheckpointPod(checkpoint, timeout=CALL_SECONDS)
        try:
            restore = pb.RestorePodRequest(
                checkpoint_path=str(self._directory), config=self._pod("to"), container_configs=self._configs
            )
            made = runtime.RestorePod(restore, timeout=CALL_SECONDS)
            for each in made.restored_containers:
                runtime.StartContainer(pb.StartContainerRequest(container_id=each.container_id), timeout=CALL_SECONDS)
        finally:
            shutil.rmtree(self._directory)

    def remove_all(self) -> None:
        """Remove both pods. A failed checkpoint leaves an empty directory."""
        _insist(self._remove_all)

    def _pod(self, uid: str) -> pb.PodSandboxConfig:
        return pod_config(self._name, uid=f"{self._name}-{uid}", labels={LABEL: self._name})

    def _remove_all(self) -> None:
        request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector={LABEL: self._name}))
        for sandbox in self._cri.runtime.ListPodSandbox(request, timeout=CALL_SECONDS).items:
            stop = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
            self._cri.runtime.StopPodSandbox(stop, timeout=CALL_SECONDS)
            remove = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
            self._cri.runtime.RemovePodSandbox(remove, timeout=CALL_SECONDS)


def _insist(change: Callable[[], None]) -> None:
    """Repeat a change until no RPC of it fails, for at most INSIST_SECONDS."""
    until = time.monotonic() + INSIST_SECONDS
    while True:
        try:
            change()
        except grpc.RpcError:
            if time.monotonic() > until:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return
