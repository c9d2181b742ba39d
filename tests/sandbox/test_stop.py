import subprocess
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.store import CheckpointStore
from shim.container.start import start_container
from shim.domain import labels
from shim.domain.errors import FailedPrecondition, ShimError
from shim.runtime import Runtime
from shim.sandbox import network
from shim.sandbox.list import list_pod_sandbox, sandbox_state
from shim.sandbox.stop import stop_pod_sandbox
from tests.checkpoint.samples import CONNECTED, INTENT
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.mounts import need_root, unmount_below
from tests.pods import created, ready_pod, running
from tests.waits import wait_until


@pytest.mark.parametrize("sandbox_id", ["f" * 64, "0f0e8e1c-3c7c-4a6c-8a38-6f5b3f9b7f0b", "no such"])
def test_stopping_an_unknown_sandbox_succeeds(sandbox_id: str, rt: Runtime) -> None:
    stop_pod_sandbox(rt, sandbox_id=sandbox_id)


def test_a_stop_takes_away_the_restart_policy_of_pause(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.update_container(sandbox, body={"RestartPolicy": {"Name": "unless-stopped"}})
    wait_until(lambda: rt.view.sandbox(sandbox).state.restarts)
    stop_pod_sandbox(rt, sandbox_id=sandbox)
    assert engine.inspect_container(sandbox).host_config.restart_policy.name == "no"


def test_a_container_docker_is_still_starting_does_not_survive(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    container = created(rt, sandbox)
    errors: list[Exception] = []

    def start() -> None:
        try:
            start_container(rt, container_id=container)
        except FailedPrecondition as error:
            errors.append(error)

    stopping = threading.Thread(target=stop_pod_sandbox, args=(rt,), kwargs={"sandbox_id": sandbox})
    starting = threading.Thread(target=start)
    with engine.held("kill_container", sandbox) as pause_lives:
        with engine.held("start_container", container) as gate:
            starting.start()
            gate.wait_entered()
            stopping.start()
            pause_lives.wait_entered()
        starting.join(10)
        assert not engine.containers[container].running
    stopping.join(10)
    assert "is not ready" in str(errors[0])


def test_a_pod_that_is_half_stopped_is_not_ready_after_a_restart(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.fail_next("kill_container", ShimError("docker hangs"))
    with pytest.raises(ShimError, match="docker hangs"):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
    found = CheckpointStore(rt.config.root_directory / "sandboxes").get(sandbox)
    assert found is not None
    assert not found.ready


def test_everything_in_the_pod_ends(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    ended, never_started = running(rt, sandbox, "a"), created(rt, sandbox, "b")
    other = running(rt, ready_pod(rt, "other"))
    stop_pod_sandbox(rt, sandbox_id=sandbox)
    assert sandbox_state(rt.checkpoints, rt.view.sandbox(sandbox)) == pb.SANDBOX_NOTREADY
    assert rt.view.container(ended).state.phase == pb.CONTAINER_EXITED
    assert rt.view.container(never_started).state.phase == pb.CONTAINER_CREATED
    assert rt.view.container(other).state.running
    stop_pod_sandbox(rt, sandbox_id=sandbox)


def test_a_container_that_does_not_end_does_not_save_the_others(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    containers = [running(rt, sandbox, name) for name in "abc"]
    engine.fail_next("kill_container", ShimError("it is in state D"))
    with pytest.raises(ShimError, match="state D"):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
    assert sum(rt.view.container(container).state.running for container in containers) == 1
    # Its address may still be in use, so the pod keeps its network.
    assert rt.view.sandbox(sandbox).state.running
    stop_pod_sandbox(rt, sandbox_id=sandbox)
    assert not rt.view.sandbox(sandbox).state.running


def test_a_pause_container_removed_by_hand_stays_listed_until_it_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.remove_container(sandbox)
    rt.view.refresh_container(sandbox)
    (left,) = list_pod_sandbox(rt, filter=pb.PodSandboxFilter())
    assert (left.id, left.state, left.metadata.name) == (sandbox, pb.SANDBOX_NOTREADY, "web")
    assert left.created_at > 0
    stop_pod_sandbox(rt, sandbox_id=sandbox[:12])


def test_a_stop_that_had_to_wait_for_run_stops_what_run_has_started(rt: Runtime, engine: FakeEngine) -> None:
    with engine.held("start_container") as gate:
        run = threading.Thread(target=ready_pod, args=(rt,))
        run.start()
        gate.wait_entered()
        (sandbox,) = engine.containers
        rt.view.refresh_container(sandbox)
        stop = threading.Thread(target=stop_pod_sandbox, args=(rt,), kwargs={"sandbox_id": sandbox})
        stop.start()
        stop.join(0.1)
        assert stop.is_alive()
    run.join(10)
    stop.join(10)
    assert not engine.containers[sandbox].running


def legacy_pod(rt: Runtime, engine: FakeEngine, *, pid: int) -> str:
    """Make a pod of cri-dockerd with the reported pause pid `pid`, and a network of the plugin `probe`."""
    body = {"Image": BUSYBOX, "Labels": {labels.TYPE: labels.TYPE_SANDBOX}}
    sandbox = engine.create_container(name="k8s_POD_old_shop_uid-1_0", body=body)
    engine.start_container(sandbox)
    engine.containers[sandbox].pid = pid
    rt.view.refresh_container(sandbox)
    conflist = {"cniVersion": "1.0.0", "name": "old", "plugins": [{"type": "probe"}]}
    intent = replace(INTENT, conflist=conflist, netns=str(network.netns_path(rt.config, sandbox)), capabilities={})
    rt.checkpoints.put(replace(CONNECTED, sandbox_id=sandbox, network=intent))
    return sandbox


def test_del_does_not_run_in_the_namespace_of_a_reused_pid(rt: Runtime, engine: FakeEngine, tmp_path: Path) -> None:
    need_root()
    (bin_dir,) = rt.config.cni_bin_dir
    bin_dir.mkdir()
    (bin_dir / "probe").write_text(f'#!/bin/sh\necho "$CNI_COMMAND:$CNI_NETNS" >{tmp_path}/ran\n')
    (bin_dir / "probe").chmod(0o755)
    command = ["unshare", "--net", "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        sandbox = legacy_pod(rt, engine, pid=other.pid)
        try:
            stop_pod_sandbox(rt, sandbox_id=sandbox)
        finally:
            unmount_below(tmp_path)
            other.kill()
    assert (tmp_path / "ran").read_text() == "DEL:\n"
    assert not engine.containers[sandbox].running
