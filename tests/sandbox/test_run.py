import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deferred_checks import DeferredChecks
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, ShimError, Unavailable
from shim.domain.labels import TYPE, TYPE_SANDBOX
from shim.hostfs.relabel import label_file
from shim.runtime import Runtime
from shim.sandbox import dns
from shim.sandbox.run import run_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.mounts import need_root
from tests.pods import pod_config, ready_pod
from tests.waits import wait_until


def test_a_sandbox_is_ready_and_known_when_run_returns(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    record = rt.view.sandbox(sandbox)
    assert pod.is_ready(rt.checkpoints, record)
    assert record.name == "k8s_POD_web_default_uid-web_0"
    assert record.config == pod_config()
    checkpoint = rt.checkpoints.get(sandbox)
    assert checkpoint is not None
    assert checkpoint.ready
    assert checkpoint.network is None


def test_a_repeated_run_returns_the_existing_sandbox(rt: Runtime, engine: FakeEngine) -> None:
    assert ready_pod(rt) == ready_pod(rt)
    assert len(engine.containers) == 1


def test_an_unfinished_sandbox_is_replaced(rt: Runtime, engine: FakeEngine) -> None:
    first = ready_pod(rt)
    engine.exit_container(first)
    rt.view.refresh_container(first)
    second = ready_pod(rt)
    assert second != first
    assert list(engine.containers) == [second]
    assert [checkpoint.sandbox_id for checkpoint in rt.checkpoints.all()] == [second]


@pytest.mark.parametrize("step", ["create_container", "start_container"])
def test_a_failed_step_leaves_nothing_behind(step: str, rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next(step, ShimError("the disk is on fire"))
    with pytest.raises(ShimError, match="on fire"):
        ready_pod(rt)
    assert engine.containers == {}
    assert rt.checkpoints.all() == []
    assert list((rt.config.root_directory / "resolv-conf").iterdir()) == []
    assert pod.is_ready(rt.checkpoints, rt.view.sandbox(ready_pod(rt)))


def test_a_sandbox_that_cannot_be_undone_stays_listed(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("start_container", ShimError("no space"))
    engine.fail_next("remove_container", ShimError("busy"))
    with pytest.raises(ShimError, match="no space") as caught:
        ready_pod(rt)
    assert any("undo of its pause container failed: busy" in note for note in caught.value.__notes__)
    (left,) = engine.containers
    rt.view.refresh_container(left)
    assert not pod.is_ready(rt.checkpoints, rt.view.sandbox(left))
    assert ready_pod(rt) != left
    assert left not in engine.containers


def test_the_resolv_conf_is_removed_with_a_sandbox_that_vanishes(rt: Runtime, engine: FakeEngine) -> None:
    deferred = DeferredChecks(pause_seconds=0.01)
    rt = replace(rt, deferred_checks=deferred)
    files = rt.config.root_directory / "resolv-conf"
    engine.fail_next("start_container", ShimError("no space"))
    engine.fail_next("remove_container", Unavailable("docker cannot be reached"))
    with pytest.raises(ShimError, match="no space"):
        ready_pod(rt)
    (left,) = engine.containers
    rt.view.refresh_container(left)
    assert len(list(files.iterdir())) == 1
    engine.remove_container(left)  # Docker creates the container late
    rt.view.refresh_container(left)
    wait_until(lambda: not list(files.iterdir()))
    deferred.stop()


def test_a_pod_with_a_network_needs_a_cni_configuration(rt: Runtime, engine: FakeEngine) -> None:
    with pytest.raises(FailedPrecondition, match=str(rt.config.cni_conf_dir)):
        run_pod_sandbox(rt, config=pod_config(network=pb.POD), runtime_handler="")
    assert engine.containers == {}


def test_an_unknown_runtime_handler_is_refused_with_the_known_handlers(rt: Runtime) -> None:
    with pytest.raises(InvalidArgument, match=r"no runtime 'kata'; it has runc"):
        run_pod_sandbox(rt, config=pod_config(), runtime_handler="kata")


@pytest.mark.parametrize("handler", ["", "docker", "runc"])
def test_known_runtime_handlers_select_the_oci_runtime(handler: str, rt: Runtime) -> None:
    sandbox = run_pod_sandbox(rt, config=pod_config(), runtime_handler=handler)
    assert rt.view.sandbox(sandbox).runtime_handler == handler


def test_a_stopped_holder_of_the_name_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    name = "k8s_POD_web_default_uid-web_0"
    image = engine.images[0].id
    holder = engine.create_container(name=name, body={"Image": image, "Labels": {TYPE: TYPE_SANDBOX}})
    sandbox = ready_pod(rt)
    assert holder not in engine.containers
    assert rt.view.sandbox(sandbox).name == name


def test_a_users_container_of_that_name_is_left_alone(rt: Runtime, engine: FakeEngine) -> None:
    name = "k8s_POD_web_default_uid-web_0"
    holder = engine.create_container(name=name, body={"Image": engine.images[0].id})
    sandbox = ready_pod(rt)
    assert holder in engine.containers
    assert rt.view.sandbox(sandbox).name.startswith(name + "_")


def test_a_running_holder_of_the_name_keeps_it(rt: Runtime, engine: FakeEngine) -> None:
    name = "k8s_POD_web_default_uid-web_0"
    holder = engine.create_container(name=name, body={"Image": engine.images[0].id})
    engine.start_container(holder)
    sandbox = ready_pod(rt)
    assert holder in engine.containers
    assert rt.view.sandbox(sandbox).name.startswith(name + "_")


def test_a_pod_that_asks_for_no_user_costs_no_inspection(rt: Runtime, engine: FakeEngine) -> None:
    ready_pod(rt)

    assert [method for method, _ in engine.calls].count("create_container") == 1


def test_pause_runs_as_the_requested_user(rt: Runtime, engine: FakeEngine) -> None:
    context = pb.LinuxSandboxSecurityContext(
        run_as_user=pb.Int64Value(value=1000),
        supplemental_groups=[7],
        namespace_options=pb.NamespaceOption(network=pb.NODE),
    )
    sandbox = ready_pod(rt, linux=pb.LinuxPodSandboxConfig(security_context=context))

    body = engine.containers[sandbox].body
    assert (body["User"], body["HostConfig"]["GroupAdd"]) == ("1000:0", ["7"])
    assert list(engine.containers) == [sandbox]


def test_the_resolv_conf_of_a_confined_pod_is_labelled(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    xattr = "trusted.label"  # stands for SELinux's attribute, which needs kernel support
    monkeypatch.setattr(dns, "label_file", partial(label_file, xattr=xattr))
    ready_pod(rt, "free")
    engine.mount_label = "system_u:object_r:container_file_t:s0:c1,c2"
    ready_pod(rt, "confined")

    free, confined = (
        pod.resolv_conf_path(rt.config, metadata=pod_config(name).metadata) for name in ("free", "confined")
    )
    assert xattr not in os.listxattr(free)
    assert os.getxattr(confined, xattr).decode() == engine.mount_label


def test_a_seccomp_profile_is_read_in_the_helper_process(rt: Runtime, tmp_path: Path) -> None:
    profile = tmp_path / "audit.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_LOG"}')
    seccomp = pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref=str(profile))
    options = pb.NamespaceOption(network=pb.NODE)
    context = pb.LinuxSandboxSecurityContext(namespace_options=options, seccomp=seccomp)
    linux = pb.LinuxPodSandboxConfig(security_context=context)
    rt.host_fs.start()
    os.kill(rt.host_fs.pid, signal.SIGSTOP)
    try:
        with deadline.bound(3), pytest.raises(DeadlineExceeded, match=str(profile)):
            ready_pod(rt, linux=linux)
    finally:
        os.kill(rt.host_fs.pid, signal.SIGCONT)
    assert ready_pod(rt, linux=linux)
