"""RestorePod."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.rollback import Rollback
from shim.container.create import create_container
from shim.container.restoring import CheckpointFiles, root
from shim.criu.checkpoint import carry_out, new_work
from shim.criu.order import TakeOrder
from shim.criu.program import search_path
from shim.domain import names
from shim.domain.errors import FailedPrecondition, NotFound
from shim.domain.ids import ContainerId, SandboxId
from shim.image.find import find_image
from shim.runtime import Runtime
from shim.sandbox.manifest import check_same, entries_by_name, highest_pid, read_manifest
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.run import run_pod_sandbox
from shim.spec.defaults import host_defaults
from shim.spec.order import check_takes_orders
from shim.spec.user_namespace import is_asked_for

TAKE_SECONDS = 600.0
"""Timeout of the copy of a checkpoint: some 60 GiB of memory on a disk that writes 100 MB/s."""


@dataclass(frozen=True, slots=True)
class RestoredPod:
    """A restored pod sandbox, and its containers by name."""

    sandbox: SandboxId
    containers: dict[str, ContainerId]


def restore_pod(
    rt: Runtime,
    *,
    checkpoint_path: str,
    config: pb.PodSandboxConfig,
    runtime_handler: str,
    container_configs: Sequence[pb.ContainerConfig],
    refuse_connections: bool,
) -> RestoredPod:
    """Create a pod sandbox and its containers, which continue from a checkpoint when they are started.

    The checkpoint is copied first, so it can be deleted when this returns. Established TCP connections are closed; with
    `refuse_connections` such a checkpoint is refused. If this raises, nothing is left.
    """
    _check_possible(rt, config, runtime_handler=runtime_handler)
    with _taken(rt, checkpoint_path, refuse_connections=refuse_connections) as directory:
        manifest = read_manifest(directory)
        entries, highest = entries_by_name(manifest, container_configs), highest_pid(manifest)
        for index, each in enumerate(container_configs):
            entry, field = entries[each.metadata.name], f"container_configs[{index}]"
            check_same(entry, each, layers=_layers(rt, each, field=field), field=field)
        with Rollback(f"restore pod sandbox {names.sandbox_name(config.metadata)}") as rollback:
            made: list[SandboxId] = []
            rollback.undo("its pod sandbox", partial(_remove_all, rt, made))
            made.append(run_pod_sandbox(rt, config=config, runtime_handler=runtime_handler, must_be_new=True))
            containers = {
                each.metadata.name: create_container(
                    rt,
                    sandbox_id=made[0],
                    config=each,
                    sandbox_config=config,
                    checkpoint=CheckpointFiles(directory / entries[each.metadata.name].directory, highest),
                )
                for each in container_configs
            }
            rollback.commit()
    return RestoredPod(made[0], containers)


def _remove_all(rt: Runtime, made: Sequence[SandboxId]) -> None:
    for sandbox_id in made:
        remove_pod_sandbox(rt, sandbox_id=sandbox_id)


def _check_possible(rt: Runtime, config: pb.PodSandboxConfig, *, runtime_handler: str) -> None:
    """Check that a pod with this configuration can be restored. Raise FailedPrecondition or AlreadyExists."""
    if is_asked_for(config.linux.security_context.namespace_options):
        field = "config.linux.security_context.namespace_options.userns_options"
        raise FailedPrecondition(f"{field}: containers in a user namespace cannot be restored")
    defaults = host_defaults(rt, config, runtime_handler=runtime_handler)
    check_takes_orders(rt.facts.info(), runtime=defaults.runtime, field="runtime_handler")


@contextmanager
def _taken(rt: Runtime, checkpoint_path: str, *, refuse_connections: bool) -> Iterator[Path]:
    """Check and copy a checkpoint for the block. Raise Unsupported without criu, or FailedPrecondition."""
    directory = new_work(root(rt))
    order = TakeOrder(
        directory=checkpoint_path,
        path=search_path(os.environ),
        target=str(directory),
        refuse_connections=refuse_connections,
    )
    try:
        with deadline.bound(TAKE_SECONDS), rt.locks.checkpoint():
            carry_out(rt.own_exec, order, what=f"restore from {checkpoint_path}")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _layers(rt: Runtime, config: pb.ContainerConfig, *, field: str) -> Sequence[str]:
    image = find_image(rt, config.image.image)
    if image is None:
        raise NotFound(f"{field}.image.image: {config.image.image!r} is not on this node; pull it first")
    return rt.engine.inspect_image(image.id).root_fs.layers or []
