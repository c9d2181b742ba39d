import json
from dataclasses import replace

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.create import create_container
from shim.engine.interface import ImageSettings
from shim.errors import FailedPrecondition, InvalidArgument, NotFound, ShimError
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.pods import container_config, created, ready_pod, running


def test_a_container_is_known_when_create_returns(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    record = rt.view.container(created(rt, sandbox))
    assert record.name == "k8s_app_web_default_uid-web_0"
    assert record.sandbox_id == sandbox
    assert record.life.state == pb.CONTAINER_CREATED
    assert record.log_path == "/var/log/pods/web/app.log"


def test_secrets_have_no_second_copy_in_a_label(rt: Runtime, engine: FakeEngine) -> None:
    made = created(rt, ready_pod(rt), envs=[pb.KeyValue(key="TOKEN", value=b"hush")], args=["--password=hush"])
    assert "hush" not in json.dumps(engine.containers[made].labels)


def test_labels_of_the_image_are_not_those_of_the_container(rt: Runtime, engine: FakeEngine) -> None:
    hostile = {"tier": "evil", "extra": "evil", "annotation.note": "evil", "io.kubernetes.sandbox.id": "evil"}
    engine.add_image("evil:latest", ImageSettings(labels=hostile))
    rt.view.refresh_images()
    sandbox = ready_pod(rt)
    record = rt.view.container(created(rt, sandbox, image="evil:latest"))
    assert dict(record.config.labels) == {"tier": "app"}
    assert dict(record.config.annotations) == {}
    assert record.sandbox_id == sandbox


def test_the_image_must_be_there(rt: Runtime) -> None:
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


def test_a_running_container_keeps_its_name(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first, second = running(rt, sandbox), created(rt, sandbox)
    assert rt.view.container(first).life.running
    assert rt.view.container(second).name.startswith("k8s_app_web_default_uid-web_0_")


def test_a_create_that_fails_leaves_nothing(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.fail_next("create_container", ShimError("no space"))
    with pytest.raises(ShimError, match="no space"):
        created(rt, sandbox)
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


def test_unified_keys_on_cgroup_v1_fail_at_create(rt: Runtime) -> None:
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(unified={"memory.oom.group": "1"}))
    with pytest.raises(InvalidArgument, match=r"config\.linux\.resources\.unified"):
        created(rt, ready_pod(rt), linux=linux)


def test_dockers_own_copy_of_the_output_is_bounded_and_complete(rt: Runtime, engine: FakeEngine) -> None:
    """Whatever the daemon's defaults are: it adds those that are not said here."""
    log_config = engine.containers[created(rt, ready_pod(rt))].body["HostConfig"]["LogConfig"]
    assert log_config == {
        "Type": "json-file",
        "Config": {"max-size": "16m", "max-file": "2", "compress": "false", "mode": "blocking"},
    }


def test_docker_keeps_output_as_the_setting_says(rt: Runtime, engine: FakeEngine) -> None:
    changed = replace(rt, config=msgspec.structs.replace(rt.config, docker_log_driver="local", docker_log_max_file=3))
    log_config = engine.containers[created(changed, ready_pod(rt))].body["HostConfig"]["LogConfig"]
    assert log_config == {
        "Type": "local",
        "Config": {"max-size": "16m", "max-file": "3", "compress": "false", "mode": "blocking"},
    }


def test_a_pod_without_a_log_directory_has_no_logs(rt: Runtime) -> None:
    assert rt.view.container(created(rt, ready_pod(rt, log_directory=""))).log_path == ""
