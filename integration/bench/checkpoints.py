"""The cost of moving a pod by a checkpoint: `python -m integration.bench.checkpoints`, in isolation.

A pod with two counting containers is checkpointed and restored. The times are compared to the parts alone: `runc
checkpoint` and `runc restore` of each container, and the start of such a pod without a checkpoint.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from integration.bench.setup import Setup, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.cri import Cri, container_config, pod_config
from integration.node.commands import NodeError, step
from integration.node.criu import criu_in
from integration.node.images import BUSYBOX
from integration.node.packages import CRIU, unpacked
from integration.pods.kubelet import secured
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.criu.checkpoint import Task, read_task

ENGINE = "28"
MOST = 1.5
"""Bound on the time, relative to the parts alone."""
_COMMAND = ("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /count; sleep 0.1; done")
_OPTIONS = ("--file-locks", "--tcp-established")


def measure(*, rounds: int) -> list[Bar]:
    """Measure all parts in turn. Raises NodeError if the node has no criu."""
    found = unpacked(CRIU)
    if found is None:
        raise NodeError("the packages of criu are not unpacked: python -m integration.node engines")
    took: dict[str, list[float]] = {}
    with prepared(ENGINE) as setup:
        criu = criu_in(setup.home / "criu", found)
        os.environ["PATH"] = f"{criu.script.parent}:{os.environ['PATH']}"
        with serving(setup) as (_, cri), step(f"{rounds} rounds"):
            for number in range(rounds + 1):
                for name, milliseconds in _Round(setup, cri, number).go().items():
                    if number:  # the first pod creates the bridge and fills caches
                        took.setdefault(name, []).append(milliseconds)
    medians = {name: statistics.median(each) for name, each in took.items()}
    return [
        _bar("CheckpointPod", medians["CheckpointPod"], "runc checkpoint", medians["runc checkpoint"]),
        _bar(
            "RestorePod and StartContainer",
            medians["RestorePod"],
            "runc restore, and the start of a pod",
            medians["runc restore"] + medians["start"],
        ),
    ]


def _bar(what: str, milliseconds: float, parts: str, alone: float) -> Bar:
    text = f"{what} of two containers, {milliseconds:.0f} ms ({parts}: {alone:.0f} ms): times as long"
    return Bar(text, milliseconds / alone, "", MOST, at_most=True)


class _Round:
    """A pod, and the pod restored from it."""

    def __init__(self, setup: Setup, cri: Cri, number: int) -> None:
        self._setup = setup
        self._cri = cri
        self._name = f"round-{number}"
        self._home = setup.home / self._name
        self._home.mkdir(mode=0o700)
        linux = secured(namespace_options=pb.NamespaceOption(pid=pb.CONTAINER))["linux"]
        self._configs = [container_config(name, image=BUSYBOX, command=_COMMAND, linux=linux) for name in ("a", "b")]
        self._took: dict[str, float] = {}

    def go(self) -> dict[str, float]:
        """Run all steps; return the milliseconds of each by name."""
        runtime = self._cri.runtime
        config = pod_config(self._name)
        with _timed(self._took, "start"):
            sandbox = self._cri.run(config)
            containers = [self._cri.create(sandbox, each, pod=config) for each in self._configs]
            for container in containers:
                self._cri.start(container)
        for container in containers:
            wait_until(partial(self._counts, container))
        self._alone(containers)
        directory = self._home / "pod"
        directory.mkdir(mode=0o700)
        request = pb.CheckpointPodRequest(pod_sandbox_id=sandbox, output_path=str(directory), container_ids=containers)
        with _timed(self._took, "CheckpointPod"):
            runtime.CheckpointPod(request)
        restore = pb.RestorePodRequest(
            checkpoint_path=str(directory),
            config=pod_config(f"{self._name}-restored"),
            container_configs=self._configs,
        )
        with _timed(self._took, "RestorePod"):
            restored = runtime.RestorePod(restore)
            for each in restored.restored_containers:
                self._cri.start(each.container_id)
        for each in restored.restored_containers:
            wait_until(partial(self._counts, each.container_id))
        for pod in (sandbox, restored.pod_sandbox_id):
            self._cri.stop(pod)
            self._cri.remove(pod)
        shutil.rmtree(self._home)
        return self._took

    def _counts(self, container: str) -> bool:
        return self._cri.exec(container, "cat", "/count").stdout > b"1"

    def _alone(self, containers: Sequence[str]) -> None:
        tasks = {container: self._task(container) for container in containers}
        with _timed(self._took, "runc checkpoint"):
            for container, task in tasks.items():
                images = ("--image-path", str(self._home / container), "--work-path", str(self._home))
                _runc(task, str(task.state_root), "checkpoint", "--leave-running", *_OPTIONS, *images, container)
        states = str(self._home / "states")
        for container, task in tasks.items():
            self._write_bundle(container, task)
        with _timed(self._took, "runc restore"):
            for container, task in tasks.items():
                images = ("--image-path", str(self._home / container), "--work-path", str(self._home))
                bundle = str(self._home / f"{container}-bundle")
                _runc(task, states, "restore", "--detach", "--bundle", bundle, *_OPTIONS, *images, container)
        for container, task in tasks.items():
            _runc(task, states, "delete", "--force", container)

    def _task(self, container: str) -> Task:
        api = self._setup.engine.api
        found = api.inspect_container(container)
        pause = api.inspect_container(found["HostConfig"]["NetworkMode"].partition(":")[2])
        exec_root = Path(pause["NetworkSettings"]["SandboxKey"]).parents[1]
        return read_task(container, exec_root=exec_root, pid=found["State"]["Pid"])

    def _write_bundle(self, container: str, task: Task) -> None:
        """Write a bundle with the root file system of the container, which keeps running."""
        bundle = self._home / f"{container}-bundle"
        bundle.mkdir()
        config: dict[str, Any] = dict(task.config)
        root = self._setup.engine.api.inspect_container(container)["GraphDriver"]["Data"]["MergedDir"]
        config["root"] = {**config["root"], "path": root}
        config["linux"] = {**config["linux"], "cgroupsPath": f"{config['linux']['cgroupsPath']}-restored"}
        (bundle / "config.json").write_text(json.dumps(config))


class _timed:  # noqa: N801 - it reads as a function
    def __init__(self, took: dict[str, float], name: str) -> None:
        self._took = took
        self._name = name
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._took[self._name] = (time.monotonic() - self._began) * 1000


def _runc(task: Task, states: str, *arguments: str) -> None:
    with Path(os.devnull).open("r+b") as null:
        done = subprocess.run(
            [str(task.runc), "--root", states, *arguments],
            check=False,
            stdin=null,
            stdout=null,
            stderr=subprocess.PIPE if arguments[0] == "checkpoint" else null,
        )
    if done.returncode != 0:
        raise NodeError(f"runc {arguments[0]}: exit code {done.returncode}: {(done.stderr or b'').decode()[-300:]}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.checkpoints", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="number of moved pods (%(default)s)")
    arguments = parser.parse_args()
    run: Callable[[], list[Bar]] = partial(measure, rounds=arguments.rounds)
    return print_bars(run)


if __name__ == "__main__":
    sys.exit(main())
