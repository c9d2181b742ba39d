import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base.deferred_checks import DeferredChecks
from shim.cgroup.places import Group
from shim.checkpoint.model import SandboxCheckpoint
from shim.config.model import Config
from shim.container.remove import remove_container
from shim.daemon import recover as module
from shim.daemon.recover import (
    end_orphaned_plugins,
    remove_leftover_containers,
    remove_orphaned_files,
    restore_limits,
)
from shim.domain import labels, names
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from shim.sandbox.dns import write_resolv_conf
from shim.view.node_view import NodeView
from shim.view.watch import Watcher
from tests.cgroup.trees import new_group_v1
from tests.checkpoint.samples import BEFORE_ADD, CONNECTED, RELEASED
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.pods import created, ready_pod
from tests.waits import wait_until


def test_resolv_conf_without_a_pod_is_removed(rt: Runtime) -> None:
    ready_pod(rt)
    [known] = pod.resolv_conf_directory(rt.config).iterdir()
    orphan = pod.resolv_conf_directory(rt.config) / "orphan"
    orphan.touch()
    for path in (known, orphan):
        os.utime(path, (rt.server.started_at - 60, rt.server.started_at - 60))

    remove_orphaned_files(rt)

    assert list(pod.resolv_conf_directory(rt.config).iterdir()) == [known]


def test_resolv_conf_of_a_request_in_flight_stays(rt: Runtime) -> None:
    directory = pod.resolv_conf_directory(rt.config)
    directory.mkdir()
    (directory / "just-begun").touch()
    os.utime(directory / "just-begun", (time.time(), time.time()))

    remove_orphaned_files(rt)

    assert [path.name for path in directory.iterdir()] == ["just-begun"]


def test_earlier_resolv_conf_reused_by_a_request_stays(rt: Runtime) -> None:
    path = pod.resolv_conf_directory(rt.config) / "just-found"
    write_resolv_conf(path, b"nameserver 10.0.0.10\n")
    os.utime(path, (1, 1))
    inode = path.stat().st_ino
    write_resolv_conf(path, b"nameserver 10.0.0.10\n")

    remove_orphaned_files(rt)

    assert path.stat().st_ino == inode


def test_failed_removal_does_not_stop_other_removals(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = pod.resolv_conf_directory(rt.config)
    for name in ("a", "c"):
        (directory / name).mkdir(parents=True)
    for name in ("b", "d", "gone"):
        (directory / name).write_text("")
    for path in directory.glob("*"):
        os.utime(path, (1, 1))
    found = list(directory.glob("*"))
    (directory / "gone").unlink()
    monkeypatch.setattr(Path, "glob", lambda *_: found)
    remove_orphaned_files(rt)
    assert {path.name for path in directory.iterdir()} == {"a", "c"}


def test_node_without_pods_has_nothing_to_remove(rt: Runtime) -> None:
    remove_orphaned_files(rt)

    assert not pod.resolv_conf_directory(rt.config).exists()


def test_the_container_of_an_interrupted_inspection_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    body = {"Image": BUSYBOX, "Labels": {labels.INSPECTION: "rootfs"}}
    engine.containers[engine.create_container(name=names.inspection_name(), body=body)].created = 1

    remove_leftover_containers(rt)

    assert list(engine.containers) == [sandbox]


def test_limits_of_containers_that_are_gone_are_forgotten(rt: Runtime) -> None:
    limits = pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20)
    there = created(rt, ready_pod(rt))
    for container in (there, "f" * 64):
        rt.limits.put(container, limits)

    remove_orphaned_files(rt)

    assert [path.stem for path in (rt.config.root_directory / "limits").iterdir()] == [there]


def test_limits_missing_after_a_crash_are_written(
    rt: Runtime, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = new_group_v1(tmp_path, "pause")
    monkeypatch.setattr(rt.cgroups, "find", lambda _id, **_: group)
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    container = created(rt, ready_pod(rt), linux=linux)
    engine.start_container(container)
    rt.view.refresh_container(container)
    path, _ = group.memory_file(1 << 20)
    assert Path(path).read_text() != str(1 << 20)

    restore_limits(rt)

    assert Path(path).read_text() == str(1 << 20)


def test_limits_of_containers_started_after_the_recovery_are_written(
    rt: Runtime, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    sandbox = ready_pod(rt)
    group = new_group_v1(tmp_path, "late")
    groups: dict[str, Group] = {sandbox: new_group_v1(tmp_path, "pause")}
    other = new_group_v1(tmp_path, "other")
    monkeypatch.setattr(rt.cgroups, "find", lambda key, **_: groups.get(key, other))
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    late, gone, ended = (created(rt, sandbox, name, linux=linux) for name in ("late", "gone", "ended"))
    groups[late] = group
    path, _ = group.memory_file(1 << 20)
    unlimited = created(rt, sandbox, "unlimited")

    restore_limits(rt)
    assert not rt.deferred_checks.is_pending(f"limits of container {unlimited}")
    remove_container(rt, container_id=gone)
    engine.start_container(ended)
    engine.exit_container(ended)
    wait_until(lambda: not rt.deferred_checks.is_pending(f"limits of container {ended}"))
    assert Path(path).read_text() != str(1 << 20)
    engine.start_container(late)

    wait_until(lambda: not rt.deferred_checks.is_pending(f"limits of container {late}"))
    assert Path(path).read_text() == str(1 << 20)


@pytest.mark.parametrize(
    ("checkpoint", "ended"),
    [(BEFORE_ADD, True), (RELEASED, True), (CONNECTED, False)],
    ids=["in its ADD", "behind its DEL", "ready"],
)
def test_plugin_processes_of_a_ready_pod_stay(rt: Runtime, checkpoint: SandboxCheckpoint, ended: bool) -> None:
    rt.checkpoints.put(checkpoint)
    environment = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": checkpoint.sandbox_id}
    command, pipe = ["/bin/sh", "-c", "echo begun; read _"], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, start_new_session=True) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"begun\n"
        try:
            end_orphaned_plugins(rt)
            assert (left.poll() is not None) == ended
        finally:
            left.kill()


@pytest.mark.parametrize("failure", [ShimError("cannot"), OSError("cannot")])
def test_failing_step_does_not_stop_other_steps(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def failing(_rt: Runtime) -> None:
        raise failure

    leftover = rt.config.root_directory / "limits" / ("f" * 64)
    rt.limits.put(leftover.name, pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    monkeypatch.setattr(module, "restore_limits", failing)
    with module.recovering(rt):
        wait_until(lambda: not leftover.exists())


def test_pods_are_recovered_before_their_first_answer(
    rt: Runtime, engine: FakeEngine, config: Config, logs: FakeLogs
) -> None:
    sandbox_id = ready_pod(rt)
    view = NodeView(engine, logs=logs)
    seen: list[tuple[bool, bool]] = []

    def recover() -> None:
        seen.append((sandbox_id in view.records(), view.stats().outage != ""))

    watcher = Watcher(engine, view, ended=lambda _: False, before_first_sync=recover)
    watcher.start()
    try:
        assert [record.id for record in view.sandboxes()] == [sandbox_id]
        assert seen == [(True, True)]
    finally:
        watcher.stop()
