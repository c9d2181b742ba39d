import json
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.config.model import DockerLogDriver
from shim.container import create
from shim.container.create import create_container
from shim.domain import labels
from shim.domain.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ShimError,
)
from shim.engine.answers import ImageSettings
from shim.engine.errors import LogOptionsClash, NoCommand
from shim.runtime import Runtime
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.stop import stop_pod_sandbox
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_files import FakeFile
from tests.pods import container_config, created, make_unknown, pod_config, ready_pod, running

SECONDS = 20.0


def test_a_container_is_known_when_create_returns(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    record = rt.view.container(created(rt, sandbox))
    assert record.name == "k8s_app_web_default_uid-web_0"
    assert record.sandbox_id == sandbox
    assert record.state.phase == pb.CONTAINER_CREATED
    assert record.log_path == "/var/log/pods/web/app.log"


def test_secrets_have_no_second_copy_in_a_label(rt: Runtime, engine: FakeEngine) -> None:
    made = created(rt, ready_pod(rt), envs=[pb.KeyValue(key="TOKEN", value=b"hush")], args=["--password=hush"])
    assert "hush" not in json.dumps(engine.containers[made].labels)


def test_labels_of_the_image_are_not_those_of_the_container(rt: Runtime, engine: FakeEngine) -> None:
    hostile = {"tier": "evil", "extra": "evil", "annotation.note": "evil", "io.kubernetes.sandbox.id": "evil"}
    engine.add_image("evil:latest", ImageSettings(labels=hostile))
    rt.view.images.refresh()
    sandbox = ready_pod(rt)
    record = rt.view.container(created(rt, sandbox, image="evil:latest"))
    assert dict(record.config.labels) == {"tier": "app"}
    assert dict(record.config.annotations) == {}
    assert record.sandbox_id == sandbox


def test_without_any_command_the_fields_are_named(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox, "earlier")  # the image has been inspected
    engine.fail_next("create_container", NoCommand("create container k8s_app: image x names no command either"))
    with pytest.raises(InvalidArgument, match=r"^config\.command and config\.args are empty: .* image x names no"):
        created(rt, sandbox)


def test_create_fails_for_a_missing_image(rt: Runtime) -> None:
    with pytest.raises(NotFound, match=r"config\.image\.image: 'nowhere:1' is not on this node"):
        created(rt, ready_pod(rt), image="nowhere:1")


def test_the_sandbox_must_be_ready(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.exit_container(sandbox)
    rt.view.refresh_container(sandbox)
    with pytest.raises(FailedPrecondition, match=f"pod sandbox {sandbox} is not ready"):
        created(rt, sandbox)
    with pytest.raises(NotFound):
        created(rt, type(sandbox)("e" * 64))


def test_a_second_attempt_with_the_same_name_replaces_one_that_never_ran(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first, second = created(rt, sandbox), created(rt, sandbox)
    assert first not in engine.containers
    assert rt.view.container(second).name == "k8s_app_web_default_uid-web_0"


def test_a_name_and_attempt_that_runs_is_refused(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first = running(rt, sandbox)
    with pytest.raises(AlreadyExists, match=f"attempt 0 of app runs in this pod as container {first}"):
        created(rt, sandbox)
    assert list(engine.containers) == [sandbox, first]
    created(rt, sandbox, metadata=pb.ContainerMetadata(name="app", attempt=1))


def test_a_running_attempt_that_the_view_does_not_know_is_refused(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    tags = {labels.TYPE: labels.TYPE_CONTAINER, labels.SANDBOX_ID: sandbox}
    body = {"Image": BUSYBOX, "Labels": tags, "HostConfig": {"NetworkMode": f"container:{sandbox}"}}
    holder = engine.create_container(name="k8s_app_web_default_uid-web_0", body=body)
    engine.start_container(holder)
    with pytest.raises(AlreadyExists, match=f"container {holder} runs under this name"):
        created(rt, sandbox)


def test_a_renamed_container_is_replaced_like_any_other(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first = created(rt, sandbox)
    engine.rename_container(first, name="mine")
    second = created(rt, sandbox)
    assert first not in engine.containers
    assert rt.view.container(second).name == "k8s_app_web_default_uid-web_0"


def test_a_renamed_running_container_is_refused(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first = running(rt, sandbox)
    engine.rename_container(first, name="mine")
    with pytest.raises(AlreadyExists, match=first):
        created(rt, sandbox)


@pytest.mark.parametrize("runs", [False, True], ids=["created", "running"])
def test_another_container_of_a_pod_keeps_the_name_that_a_user_gave_it(
    rt: Runtime, engine: FakeEngine, runs: bool
) -> None:
    sandbox = ready_pod(rt)
    holder = running(rt, sandbox, "other") if runs else created(rt, sandbox, "other")
    engine.rename_container(holder, name="k8s_app_web_default_uid-web_0")
    made = created(rt, sandbox)
    assert engine.containers[holder].name == "k8s_app_web_default_uid-web_0"
    assert re.fullmatch(r"k8s_app_web_default_uid-web_0_[0-9a-f]{8}", engine.containers[made].name)


def test_a_users_container_of_a_committed_image_keeps_the_name(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first = created(rt, sandbox)
    tags = engine.containers[first].labels
    engine.remove_container(first)
    rt.view.forget(first)
    body = {"Image": BUSYBOX, "Labels": tags, "HostConfig": {"NetworkMode": "bridge", "Init": False}}
    holder = engine.create_container(name="k8s_app_web_default_uid-web_0", body=body)
    made = created(rt, sandbox)
    assert holder in engine.containers
    assert made != holder


def test_a_holder_in_an_unknown_state_keeps_the_name(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first = running(rt, sandbox)
    make_unknown(rt, engine, first)
    with pytest.raises(AlreadyExists, match=first):
        created(rt, sandbox)


def test_a_holder_that_cannot_be_inspected_fails_the_create(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.create_container(name="k8s_app_web_default_uid-web_0", body={"Image": BUSYBOX})
    engine.fail_next("inspect_container", DeadlineExceeded("inspect container: not within 5 s"))
    with pytest.raises(DeadlineExceeded, match="inspect container"):
        created(rt, sandbox)


def test_a_name_held_by_a_user_gets_a_suffix(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.create_container(name="k8s_app_web_default_uid-web_0", body={"Image": BUSYBOX})
    first = running(rt, sandbox)
    assert rt.view.container(first).name.startswith("k8s_app_web_default_uid-web_0_")
    with pytest.raises(AlreadyExists, match=first):
        created(rt, sandbox)


def test_a_create_that_fails_leaves_nothing(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.fail_next("create_container", ShimError("no space"))
    with pytest.raises(ShimError, match="no space"):
        created(rt, sandbox)
    assert list(engine.containers) == [sandbox]


@pytest.mark.parametrize(
    "refused",
    [
        {"mounts": [pb.Mount(host_path="/etc/passwd/no", container_path="/b")]},
        {"devices": [pb.Device(host_path="/dev/no-such-device")]},
    ],
    ids=["later mount", "device"],
)
def test_a_refused_create_makes_no_host_path(rt: Runtime, tmp_path: Path, refused: dict[str, Any]) -> None:
    missing = pb.Mount(host_path=str(tmp_path / "new/below"), container_path="/a")
    with pytest.raises(FailedPrecondition):
        created(rt, ready_pod(rt), **{**refused, "mounts": [missing, *refused.get("mounts", [])]})
    assert not (tmp_path / "new").exists()


def test_a_failed_create_keeps_host_paths_for_other_containers(rt: Runtime, engine: FakeEngine, tmp_path: Path) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox, "earlier")  # the image has been inspected
    shared = tmp_path / "new/below"
    mount = pb.Mount(host_path=str(shared), container_path="/a")
    client = deadline.Scope()

    def create_first() -> None:
        with deadline.entered(client), pytest.raises(Cancelled):
            created(rt, sandbox, "first", mounts=[mount])

    with engine.held("create_container", "k8s_first_web_default_uid-web_0") as gate:
        caller = threading.Thread(target=create_first)
        caller.start()
        gate.wait_entered()
        created(rt, sandbox, "second", mounts=[mount])
        mounted = os.open(shared, os.O_PATH | os.O_DIRECTORY)  # this directory, by its path on its mount
        client.cancel()
        caller.join(SECONDS)

    try:
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=mounted))
    finally:
        os.close(mounted)
    assert (shared / "file").is_file()


@pytest.mark.parametrize(
    ("end", "failure"),
    [(remove_pod_sandbox, NotFound), (stop_pod_sandbox, FailedPrecondition)],
    ids=["removed", "stopped"],
)
def test_a_pod_that_ends_during_the_create_gets_no_container(
    rt: Runtime, engine: FakeEngine, end: Callable[..., None], failure: type[ShimError]
) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox, "earlier")  # the image has been inspected
    errors: list[ShimError] = []

    def create() -> None:
        try:
            created(rt, sandbox)
        except ShimError as error:
            errors.append(error)

    name = "k8s_app_web_default_uid-web_0"
    creating = threading.Thread(target=create)
    with engine.held("create_container", name) as gate:
        creating.start()
        gate.wait_entered()
        end(rt, sandbox_id=sandbox)
    creating.join(SECONDS)

    assert [type(error) for error in errors] == [failure]
    assert name not in [container.name for container in engine.containers.values()]
    assert name not in [record.name for record in rt.view.containers()]


def test_a_limit_discarded_by_docker_fails_the_create(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.discards = {"CpusetCpus": ""}
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(cpuset_cpus="0", cpu_shares=512))
    with pytest.raises(FailedPrecondition, match=r"config\.linux\.resources\.cpuset_cpus 0: Docker has discarded it"):
        created(rt, sandbox, linux=linux)
    assert list(engine.containers) == [sandbox]


def test_the_pid_namespace_of_a_container_of_the_same_pod_can_be_joined(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    target = running(rt, sandbox, "target")
    foreign = running(rt, ready_pod(rt, "other"), "target")

    def debug(target_id: str) -> str:
        options = pb.NamespaceOption(pid=pb.TARGET, target_id=target_id)
        context = pb.LinuxContainerSecurityContext(namespace_options=options)
        config = container_config("debug", linux=pb.LinuxContainerConfig(security_context=context))
        return create_container(rt, sandbox_id=sandbox, config=config, sandbox_config=pb.PodSandboxConfig())

    assert engine.containers[debug(target)].body["HostConfig"]["PidMode"] == f"container:{target}"
    with pytest.raises(FailedPrecondition, match="target_id"):
        debug(foreign)
    with pytest.raises(NotFound):
        debug("e" * 64)


def create_privileged(rt: Runtime, sandbox: str, *, pod: pb.PodSandboxConfig) -> str:
    linux = pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(privileged=True))
    return create_container(rt, sandbox_id=sandbox, config=container_config("debug", linux=linux), sandbox_config=pod)


def privileged_pod() -> pb.PodSandboxConfig:
    """A pod like a kubelet's, once any of its containers is privileged."""
    pod = pod_config()
    pod.linux.security_context.privileged = True
    return pod


def test_a_pod_may_become_privileged_after_its_sandbox_was_made(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    with pytest.raises(InvalidArgument, match="the pod sandbox is not privileged"):
        create_privileged(rt, sandbox, pod=pod_config())

    made = create_privileged(rt, sandbox, pod=privileged_pod())

    assert engine.containers[made].body["HostConfig"]["Privileged"] is True


def test_a_sandbox_made_privileged_stays_so(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt, linux=privileged_pod().linux)
    made = create_privileged(rt, sandbox, pod=pod_config())
    assert engine.containers[made].body["HostConfig"]["Privileged"] is True


def test_a_pod_of_another_shim_may_be_privileged(rt: Runtime, engine: FakeEngine) -> None:
    tags = {labels.TYPE: labels.TYPE_SANDBOX, labels.CONTAINER_NAME: "POD"}
    sandbox = engine.create_container(name="k8s_POD_web_default_uid-web_0", body={"Image": BUSYBOX, "Labels": tags})
    engine.start_container(sandbox)
    rt.view.refresh_container(sandbox)
    assert rt.view.sandbox(sandbox).legacy

    made = create_privileged(rt, sandbox, pod=privileged_pod())

    assert engine.containers[made].body["HostConfig"]["Privileged"] is True


def test_unified_keys_on_cgroup_v1_fail_at_create(rt: Runtime) -> None:
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(unified={"memory.oom.group": "1"}))
    with pytest.raises(InvalidArgument, match=r"config\.linux\.resources\.unified"):
        created(rt, ready_pod(rt), linux=linux)


def test_docker_log_options_bound_its_copy_of_the_output(rt: Runtime, engine: FakeEngine) -> None:
    """The daemon would add its defaults for missing options."""
    log_config = engine.containers[created(rt, ready_pod(rt))].body["HostConfig"]["LogConfig"]
    assert log_config == {
        "Type": "json-file",
        "Config": {
            "max-size": "16m",
            "max-file": "2",
            "compress": "false",
            "mode": "blocking",
            "labels": "",
            "labels-regex": "",
            "env": "",
            "env-regex": "",
            "tag": "",
        },
    }


def test_the_log_driver_setting_is_used(rt: Runtime, engine: FakeEngine) -> None:
    changed = replace(rt, config=msgspec.structs.replace(rt.config, docker_log_driver="local", docker_log_max_file=3))
    log_config = engine.containers[created(changed, ready_pod(rt))].body["HostConfig"]["LogConfig"]
    assert log_config == {
        "Type": "local",
        "Config": {"max-size": "16m", "max-file": "3", "compress": "false", "mode": "blocking"},
    }


@pytest.mark.parametrize(("setting", "other"), [("json-file", "local"), ("local", "json-file")])
def test_another_log_driver_is_used_if_dockers_options_clash(
    rt: Runtime, engine: FakeEngine, setting: DockerLogDriver, other: DockerLogDriver
) -> None:
    changed = replace(rt, config=msgspec.structs.replace(rt.config, docker_log_driver=setting))
    sandbox = ready_pod(changed)
    created(changed, sandbox, "earlier")  # the image has been inspected
    engine.fail_next("create_container", LogOptionsClash("create container k8s_app: log-opts of dockerd: logger: no"))

    log_config = engine.containers[created(changed, sandbox)].body["HostConfig"]["LogConfig"]

    assert log_config["Type"] == other
    assert log_config["Config"]["mode"] == "blocking"
    assert ("tag" in log_config["Config"]) == (other == "json-file")


def test_the_log_directory_comes_from_the_create_request(rt: Runtime) -> None:
    """The directory moves with a kubelet setting, and the kubelet collects only logs in the current directory."""
    sandbox = ready_pod(rt, log_directory="/var/log/old/p")
    now = pb.PodSandboxConfig(log_directory="/var/log/new/p")

    container = create_container(
        rt, sandbox_id=sandbox, config=container_config(log_path="c/0.log"), sandbox_config=now
    )

    assert rt.view.container(container).log_path == "/var/log/new/p/c/0.log"


def test_a_pod_without_a_log_directory_has_no_logs(rt: Runtime) -> None:
    assert rt.view.container(created(rt, ready_pod(rt, log_directory=""))).log_path == ""


def test_a_log_path_too_long_for_the_kernel_is_refused(rt: Runtime, engine: FakeEngine) -> None:
    """Each part alone may be short enough, and the pod's directory is not in the request."""
    sandbox = ready_pod(rt, log_directory="/" + "d/" * 1500)
    before = len(engine.containers)
    with pytest.raises(InvalidArgument, match=r"^config\.log_path below .* has 4101 bytes, at most 4095 are allowed"):
        created(rt, sandbox, log_path="a/" * 550)
    assert len(engine.containers) == before


def test_mounts_get_the_selinux_label_of_the_container(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    labelled: list[tuple[str, str]] = []
    monkeypatch.setattr(
        create, "relabel_mounts", lambda _rt, mounts, _docker, label: labelled.append((mounts[0].host_path, label))
    )
    asked = [
        pb.Mount(host_path=str(tmp_path), container_path="/a", selinux_relabel=True),
        pb.Mount(host_path=str(tmp_path), container_path="/b"),
    ]
    sandbox = ready_pod(rt)
    created(rt, sandbox, mounts=asked)
    assert labelled == []  # SELinux is off: accepted without labels

    engine.mount_label = "system_u:object_r:container_file_t:s0:c1,c2"
    created(rt, sandbox, mounts=asked[1:])
    assert labelled == []
    created(rt, sandbox, mounts=asked)
    assert labelled == [(str(tmp_path), "system_u:object_r:container_file_t:s0:c1,c2")]


def test_mounts_that_cannot_be_labelled_leave_no_container(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.mount_label = "system_u:object_r:container_file_t:s0:c1,c2"
    with pytest.raises(FailedPrecondition, match=r"config\.mounts\[0\]\.selinux_relabel: /usr is a system directory"):
        created(rt, sandbox, mounts=[pb.Mount(host_path="/usr", container_path="/a", selinux_relabel=True)])
    assert list(engine.containers) == [sandbox]


def as_user(**context: Any) -> pb.LinuxContainerConfig:
    return pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(**context))


def test_docker_gets_a_numeric_user(rt: Runtime, engine: FakeEngine) -> None:
    files: dict[str, FakeFile | bytes] = {"/etc/passwd": b"www:x:1000:1000\n", "/etc/group": b"video:x:44:www\n"}
    engine.add_image("web:1", ImageSettings(user="www"), files=files)
    rt.view.images.refresh()
    sandbox = ready_pod(rt)

    merged = created(rt, sandbox, "a", image="web:1", linux=as_user(supplemental_groups=[7]))
    strict = created(rt, sandbox, "b", image="web:1", linux=as_user(supplemental_groups_policy=pb.Strict))
    plain = created(rt, sandbox, "c")

    bodies = [engine.containers[made].body for made in (merged, strict, plain)]
    assert [body["User"] for body in bodies] == ["1000:1000", "1000:1000", "0:0"]
    assert [body["HostConfig"]["GroupAdd"] for body in bodies] == [["7", "44"], [], []]


def test_create_fails_for_a_user_unknown_to_the_image(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)

    with pytest.raises(InvalidArgument, match=rf"run_as_username: user 'app' is not in .* '{BUSYBOX}'"):
        created(rt, sandbox, linux=as_user(run_as_username="app"))
    assert list(engine.containers) == [sandbox]


def test_an_image_is_inspected_only_for_its_first_container(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox, "first")
    engine.calls.clear()

    created(rt, sandbox, "second")

    # The view also inspects containers after Docker's events, at any time.
    assert [method for method, _ in engine.calls if method != "inspect_container"] == ["create_container"]


@pytest.mark.parametrize(("version", "mode"), [("1", "host"), ("2", "private")])
def test_cgroup_namespaces_are_private_whatever_the_daemons_default(
    rt: Runtime, engine: FakeEngine, version: str, mode: str
) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, cgroup_version=version)
    rt.facts.info(max_age=0)
    sandbox = ready_pod(rt)
    for made in (sandbox, created(rt, sandbox)):
        assert engine.containers[made].body["HostConfig"]["CgroupnsMode"] == mode


def confined(profile: Path, *, privileged: bool = False) -> pb.LinuxContainerConfig:
    seccomp = pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref=str(profile))
    context = pb.LinuxContainerSecurityContext(seccomp=seccomp, privileged=privileged)
    return pb.LinuxContainerConfig(security_context=context)


def test_a_localhost_seccomp_profile_is_sent_to_docker(rt: Runtime, engine: FakeEngine, tmp_path: Path) -> None:
    profile = tmp_path / "audit.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_LOG"}')
    container = created(rt, ready_pod(rt), linux=confined(profile))
    options = engine.containers[container].body["HostConfig"]["SecurityOpt"]
    assert 'seccomp={"defaultAction":"SCMP_ACT_LOG"}' in options


def test_a_privileged_container_reads_no_seccomp_profile(rt: Runtime, tmp_path: Path) -> None:
    sandbox = ready_pod(rt)
    linux = confined(tmp_path / "missing", privileged=True)
    create_container(
        rt, sandbox_id=sandbox, config=container_config("app", linux=linux), sandbox_config=privileged_pod()
    )


def test_a_seccomp_profile_is_read_in_the_helper_process(rt: Runtime, tmp_path: Path) -> None:
    profile = tmp_path / "audit.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_LOG"}')
    sandbox = ready_pod(rt)
    rt.host_fs.start()
    os.kill(rt.host_fs.pid, signal.SIGSTOP)
    try:
        with deadline.bound(0.5), pytest.raises(DeadlineExceeded, match=str(profile)):
            created(rt, sandbox, linux=confined(profile))
    finally:
        os.kill(rt.host_fs.pid, signal.SIGCONT)
