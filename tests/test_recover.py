import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from shim import daemon, labels, names, pod
from shim.api.v1 import api_pb2 as pb
from shim.cgroup.places import Group
from shim.checkpoint import envelope
from shim.checkpoint.model import SandboxCheckpoint
from shim.checkpoint.store import CheckpointStore
from shim.cni.cache import Attachment, write_cached
from shim.concurrency.lookout import Lookout
from shim.container.remove import remove_container
from shim.container.start import start_container
from shim.errors import ShimError
from shim.ids import SandboxId
from shim.recover import (
    end_orphaned_plugins,
    recover_checkpoints,
    remove_leftover_containers,
    remove_orphaned_files,
    restore_limits,
)
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.dns import write_resolv_conf
from shim.sandbox.status import pod_sandbox_status
from shim.sandbox.stop import stop_pod_sandbox
from tests.cgroup.trees import new_group_v1
from tests.checkpoint.formats import READ, SET_ASIDE, Form
from tests.checkpoint.samples import BEFORE_ADD, CONFLIST, CONNECTED, INTENT, RELEASED
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, pod_config, ready_pod
from tests.waits import wait_until


def test_a_resolv_conf_of_no_pod_is_removed(rt: Runtime) -> None:
    ready_pod(rt)
    [known] = pod.resolv_conf_directory(rt).iterdir()
    orphan = pod.resolv_conf_directory(rt) / "orphan"
    orphan.touch()
    for path in (known, orphan):
        os.utime(path, (rt.started_at - 60, rt.started_at - 60))

    remove_orphaned_files(rt)

    assert list(pod.resolv_conf_directory(rt).iterdir()) == [known]


def test_a_resolv_conf_of_a_request_under_way_is_left_alone(rt: Runtime) -> None:
    directory = pod.resolv_conf_directory(rt)
    directory.mkdir()
    (directory / "just-begun").touch()
    os.utime(directory / "just-begun", (time.time(), time.time()))

    remove_orphaned_files(rt)

    assert [path.name for path in directory.iterdir()] == ["just-begun"]


def test_one_of_an_earlier_server_that_a_request_has_found_right_is_left_alone(rt: Runtime) -> None:
    path = pod.resolv_conf_directory(rt) / "just-found"
    write_resolv_conf(path, b"nameserver 10.0.0.10\n")
    os.utime(path, (1, 1))
    inode = path.stat().st_ino
    write_resolv_conf(path, b"nameserver 10.0.0.10\n")

    remove_orphaned_files(rt)

    assert path.stat().st_ino == inode


def test_what_cannot_be_removed_keeps_nothing_else_from_being_removed(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = pod.resolv_conf_directory(rt)
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


def test_a_node_without_pods_has_nothing_to_remove(rt: Runtime) -> None:
    remove_orphaned_files(rt)

    assert not pod.resolv_conf_directory(rt).exists()


def test_the_container_of_a_look_that_was_interrupted_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    body = {"Image": BUSYBOX, "Labels": {labels.LOOK: "rootfs"}}
    engine.containers[engine.create_container(name=names.look_name(), body=body)].created = 1

    remove_leftover_containers(rt)

    assert list(engine.containers) == [sandbox]


def test_limits_of_containers_that_are_gone_are_forgotten(rt: Runtime) -> None:
    limits = pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20)
    there = created(rt, ready_pod(rt))
    for container in (there, "f" * 64):
        rt.limits.put(container, limits)

    remove_orphaned_files(rt)

    assert [path.stem for path in (rt.config.root_directory / "limits").iterdir()] == [there]


def test_limits_that_a_crash_came_before_are_written(
    rt: Runtime, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = new_group_v1(tmp_path, "pause")
    monkeypatch.setattr("shim.container.cgroup.own_group", lambda _pid, **_: group)
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    container = created(rt, ready_pod(rt), linux=linux)
    engine.start_container(container)
    rt.view.refresh_container(container)
    path, _ = group.memory_file(1 << 20)
    assert Path(path).read_text() != str(1 << 20)

    restore_limits(rt)

    assert Path(path).read_text() == str(1 << 20)


def test_limits_of_what_docker_starts_after_the_recovery_are_written(
    rt: Runtime, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = replace(rt, lookout=Lookout(pause_seconds=0.01))
    sandbox = ready_pod(rt)
    group = new_group_v1(tmp_path, "late")
    groups: dict[str, Group] = {sandbox: new_group_v1(tmp_path, "pause")}
    other = new_group_v1(tmp_path, "other")
    monkeypatch.setattr("shim.container.cgroup.own_group", lambda _pid, name, **_: groups.get(name, other))
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    late, gone, ended = (created(rt, sandbox, name, linux=linux) for name in ("late", "gone", "ended"))
    groups[late] = group
    path, _ = group.memory_file(1 << 20)
    unlimited = created(rt, sandbox, "unlimited")

    restore_limits(rt)
    assert not rt.lookout.watches(f"limits of container {unlimited}")
    remove_container(rt, container_id=gone)
    engine.start_container(ended)
    engine.exit_container(ended)
    wait_until(lambda: not rt.lookout.watches(f"limits of container {ended}"))
    assert Path(path).read_text() != str(1 << 20)
    engine.start_container(late)

    wait_until(lambda: not rt.lookout.watches(f"limits of container {late}"))
    assert Path(path).read_text() == str(1 << 20)


@pytest.mark.parametrize(
    ("checkpoint", "ended"),
    [(BEFORE_ADD, True), (RELEASED, True), (CONNECTED, False)],
    ids=["in its ADD", "behind its DEL", "ready"],
)
def test_what_a_plugin_left_running_for_a_ready_pod_is_left_alone(
    rt: Runtime, checkpoint: SandboxCheckpoint, ended: bool
) -> None:
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
def test_a_step_that_fails_keeps_no_other_from_being_taken(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def failing(_rt: Runtime) -> None:
        raise failure

    rt.limits.put("f" * 64, pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    monkeypatch.setattr(daemon, "recover_checkpoints", failing)
    assert daemon._recovered(rt)
    assert list((rt.config.root_directory / "limits").iterdir()) == []


RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]}


def pod_on(rt: Runtime, engine: FakeEngine, network: pb.NamespaceMode) -> SandboxId:
    """A pod that is ready, on the node's network or with one of its own, whose result is in the CNI cache too."""
    if network == pb.NODE:
        return ready_pod(rt)
    config = pod_config("web", network=network)
    body = {
        "Image": rt.config.pod_infra_container_image,
        "Labels": labels.sandbox_labels(config, runtime_handler=""),
        "HostConfig": {"NetworkMode": "none", "Init": False},
    }
    sandbox = SandboxId(engine.create_container(name=names.sandbox_name(config.metadata), body=body))
    engine.start_container(sandbox)
    rt.view.refresh_container(sandbox)
    attachment = Attachment(conflist=CONFLIST, container_id=sandbox, netns="/run/netns/cri-x", ifname="eth0")
    write_cached(rt.config.cni_cache_dir, attachment, result=RESULT)
    rt.checkpoints.put(
        SandboxCheckpoint(
            sandbox_id=sandbox,
            config=labels.config_as_dict(config),
            runtime_handler="",
            created_at=1,
            ready=True,
            network=replace_struct(INTENT, result=RESULT),
        )
    )
    return sandbox


def checkpoint_path(rt: Runtime, sandbox: SandboxId) -> Path:
    return rt.config.root_directory / "sandboxes" / f"{sandbox}.json"


def restarted(rt: Runtime) -> Runtime:
    """The next server on the same directories, when its recovery is through."""
    rt = replace(rt, checkpoints=CheckpointStore(rt.config.root_directory / "sandboxes"))
    recover_checkpoints(rt)
    return rt


def is_ready(rt: Runtime, sandbox: SandboxId) -> bool:
    return pod.is_ready(rt, rt.view.sandbox(sandbox))


def ip_of(rt: Runtime, sandbox: SandboxId) -> str:
    return pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False).status.network.ip


NETWORKS = pytest.mark.parametrize(("network", "ip"), [(pb.NODE, ""), (pb.POD, "10.1.0.7")], ids=["host", "pod"])


@NETWORKS
@pytest.mark.parametrize("form", READ.values(), ids=READ)
def test_a_checkpoint_of_an_earlier_server_is_read(
    rt: Runtime, engine: FakeEngine, form: Form, network: pb.NamespaceMode, ip: str
) -> None:
    sandbox = pod_on(rt, engine, network)
    content = form(msgspec.to_builtins(rt.checkpoints.get(sandbox)))
    checkpoint_path(rt, sandbox).write_bytes(content)

    rt = restarted(rt)

    assert is_ready(rt, sandbox)
    assert ip_of(rt, sandbox) == ip
    assert checkpoint_path(rt, sandbox).read_bytes() == content
    assert rt.checkpoints.corrupt() == []


@NETWORKS
@pytest.mark.parametrize(("form", "aside"), SET_ASIDE.values(), ids=SET_ASIDE)
def test_a_checkpoint_that_this_server_does_not_know_is_kept_and_its_pod_goes_on(
    rt: Runtime, engine: FakeEngine, form: Form, aside: str, network: pb.NamespaceMode, ip: str
) -> None:
    sandbox = pod_on(rt, engine, network)
    content = form(msgspec.to_builtins(rt.checkpoints.get(sandbox)))
    checkpoint_path(rt, sandbox).write_bytes(content)

    for _ in range(2):  # the second finds the one that was rebuilt
        rt = restarted(rt)
        assert is_ready(rt, sandbox)
        assert ip_of(rt, sandbox) == ip
        assert (checkpoint_path(rt, sandbox).parent / aside.format(sandbox)).read_bytes() == content


@NETWORKS
def test_a_checkpoint_of_a_newer_server_is_used_again_by_that(
    rt: Runtime, engine: FakeEngine, network: pb.NamespaceMode, ip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = pod_on(rt, engine, network)
    known = rt.checkpoints.get(sandbox)
    assert known is not None
    newer = replace_struct(known, runtime_handler="of-the-newer-server")
    monkeypatch.setattr(envelope, "VERSION", 2)
    rt.checkpoints.put(newer)

    monkeypatch.setattr(envelope, "VERSION", 1)
    rt = restarted(rt)
    assert is_ready(rt, sandbox)
    assert rt.checkpoints.get(sandbox) != newer

    monkeypatch.setattr(envelope, "VERSION", 2)
    rt = restarted(rt)
    assert is_ready(rt, sandbox)
    assert ip_of(rt, sandbox) == ip
    assert rt.checkpoints.get(sandbox) == newer


def test_a_pod_whose_stop_has_begun_is_not_ready_again_with_a_newer_server(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = pod_on(rt, engine, pb.NODE)
    known = rt.checkpoints.get(sandbox)
    assert known is not None
    monkeypatch.setattr(envelope, "VERSION", 2)
    rt.checkpoints.put(known)
    monkeypatch.setattr(envelope, "VERSION", 1)
    rt = restarted(rt)
    engine.fail_next("kill_container", ShimError("docker hangs"))
    with pytest.raises(ShimError, match="docker hangs"):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
    assert list((checkpoint_path(rt, sandbox).parent / "newer").iterdir()) == []


def test_without_any_record_of_its_network_a_pod_is_not_ready(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.POD)
    checkpoint_path(rt, sandbox).unlink()
    for path in (rt.config.cni_cache_dir / "results").iterdir():
        path.unlink()
    rt = restarted(rt)
    assert not is_ready(rt, sandbox)


def test_a_pause_container_that_has_ended_gets_no_checkpoint(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.NODE)
    checkpoint_path(rt, sandbox).unlink()
    engine.exit_container(sandbox)
    rt.view.refresh_container(sandbox)
    assert restarted(rt).checkpoints.all() == []


def test_a_pod_goes_on_in_a_state_directory_that_was_cleared(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = pod_on(rt, engine, pb.NODE)
    container = created(rt, sandbox)
    shutil.rmtree(rt.config.root_directory)
    rt = restarted(rt)
    assert is_ready(rt, sandbox)
    start_container(rt, container_id=container)
    assert [path.read_bytes() for path in pod.resolv_conf_directory(rt).iterdir()] == [dns.resolv_conf(None)]


def test_a_pod_that_is_being_made_has_not_lost_its_checkpoint(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that had to wait for Docker works beside the first requests."""
    entered, release, put = threading.Event(), threading.Event(), CheckpointStore.put

    def slow(store: CheckpointStore, checkpoint: SandboxCheckpoint, *, rebuilt: bool = False) -> None:
        if not checkpoint.ready:
            entered.set()
            assert release.wait(20)
        put(store, checkpoint, rebuilt=rebuilt)

    monkeypatch.setattr(CheckpointStore, "put", slow)
    making = threading.Thread(target=ready_pod, args=(rt,))
    making.start()
    assert entered.wait(20)
    wait_until(lambda: [record for record in rt.view.sandboxes() if record.life.running])
    recovering = threading.Thread(target=recover_checkpoints, args=(rt,))
    recovering.start()
    recovering.join(0.3)
    assert rt.checkpoints.all() == []
    release.set()
    for thread in (making, recovering):
        thread.join(20)
    assert is_ready(rt, rt.view.sandboxes()[0].id)
