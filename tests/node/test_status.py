import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.checkpoint.engine import EngineStore
from shim.dockerd.facts import EngineFacts
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, ShimError, Unavailable
from shim.engine.answers import EngineInfo
from shim.engine.answers import Runtime as OciRuntime
from shim.node.runtime_config import runtime_config
from shim.node.status import status
from shim.node.update_runtime_config import update_runtime_config
from shim.node.version import version
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.waits import wait_until


def conditions(rt: Runtime) -> dict[str, pb.RuntimeCondition]:
    return {condition.type: condition for condition in status(rt, verbose=False).status.conditions}


def test_a_node_without_a_network_says_what_is_missing(rt: Runtime) -> None:
    found = conditions(rt)
    assert found["RuntimeReady"].status
    assert not found["NetworkReady"].status
    assert found["NetworkReady"].reason == "NetworkPluginNotReady"
    assert str(rt.config.cni_conf_dir) in found["NetworkReady"].message


def test_an_unreachable_docker_is_a_condition_and_no_error(rt: Runtime, engine: FakeEngine) -> None:
    conditions(rt)
    engine.disconnect()
    found = conditions(rt)
    assert not found["RuntimeReady"].status
    assert found["RuntimeReady"].reason == "DockerDaemonNotReady"
    assert found["RuntimeReady"].message


@pytest.mark.parametrize("method", ["ping", "info"])
def test_the_condition_of_a_hung_docker_says_what_hangs(
    rt: Runtime, engine: FakeEngine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.dockerd.facts.ANSWER_SECONDS", 0.1)
    rt.view.sandboxes()
    fresh = replace(rt, facts=EngineFacts(engine, restrict_oom_score_adj="false"))
    engine.answered_at = -math.inf
    with engine.held(method):
        found = conditions(fresh)["RuntimeReady"]
    assert (found.status, found.reason) == (False, "DockerDaemonNotReady")
    assert "Docker did not answer within" in found.message
    assert ("ping" if method == "ping" else "info") in found.message
    assert conditions(fresh)["RuntimeReady"].status


def test_a_client_that_leaves_is_not_taken_for_a_hung_docker(rt: Runtime, engine: FakeEngine) -> None:
    rt.view.sandboxes()
    engine.answered_at = -math.inf
    with engine.held("ping"), deadline.bound(0.02), pytest.raises(DeadlineExceeded):
        conditions(rt)


def test_a_docker_that_answers_pings_but_no_lists_becomes_not_ready(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt.view.sandboxes()
    with engine.held("list_containers"):
        engine.disconnect()
        wait_until(lambda: rt.view.stats().outage)
        engine.reconnect()
        assert conditions(rt)["RuntimeReady"].status  # a short outage is a restart of Docker
        monkeypatch.setattr("shim.node.status.OUTAGE_SECONDS", 0.0)
        found = conditions(rt)["RuntimeReady"]
    assert (found.status, found.reason) == (False, "DockerDaemonNotReady")
    assert "Docker answers pings" in found.message


def test_a_sick_image_store_leaves_the_node_ready(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("list_images", *[ShimError("list images: layer does not exist")] * 100)
    engine.disconnect()
    wait_until(lambda: rt.view.stats().outage)
    engine.reconnect()
    wait_until(lambda: not rt.view.stats().outage)
    assert conditions(rt)["RuntimeReady"].status
    wait_until(lambda: rt.view.stats().images_outage)
    assert "layer does not exist" in json.loads(status(rt, verbose=True).info["config"])["view"]["images_outage"]


def test_runtime_handlers_are_dockers_runtimes_and_the_default(rt: Runtime, engine: FakeEngine) -> None:
    features = {"org.opencontainers.runtime-spec.features": '{"mountOptions":["rro"]}'}
    engine.engine_info = EngineInfo(
        runtimes={"runc": OciRuntime(path="runc", status=features), "crun": OciRuntime(path="crun")},
        default_runtime="runc",
    )
    handlers = status(rt, verbose=False).runtime_handlers
    assert {h.name: h.features.recursive_read_only_mounts for h in handlers} == {"": True, "runc": True, "crun": False}
    assert not any(handler.features.user_namespaces for handler in handlers)


def test_only_supported_features_are_advertised(rt: Runtime) -> None:
    assert status(rt, verbose=False).features == pb.RuntimeFeatures(supplemental_groups_policy=True)


def test_verbose_has_settings_and_view(rt: Runtime) -> None:
    reported = json.loads(status(rt, verbose=True).info["config"])
    assert reported["sandboxImage"] == rt.config.pod_infra_container_image
    assert reported["stateDir"] == f"{rt.facts.info().docker_root_dir}/containers"
    assert reported["config"]["root_directory"] == str(rt.config.root_directory)
    assert reported["view"]["containers"] == 0
    assert reported["corruptCheckpoints"] == []


def test_the_runtime_is_docker(rt: Runtime) -> None:
    assert version(rt) == pb.VersionResponse(
        version="0.1.0", runtime_name="docker", runtime_version="28.5.2", runtime_api_version="v1"
    )


def test_version_and_cgroup_driver_are_known_before_docker_answers(
    rt: Runtime, engine: FakeEngine, tmp_path: Path
) -> None:
    def started() -> Runtime:
        kept = EngineStore(tmp_path / "engine.json")
        return replace(rt, facts=EngineFacts(engine, restrict_oom_score_adj="false", kept=kept))

    engine.disconnect()
    with pytest.raises(Unavailable, match="systemctl start docker"):
        runtime_config(started())
    engine.reconnect()
    engine.engine_info = EngineInfo(server_version="28.5.2", cgroup_driver="systemd")
    version(started())
    engine.disconnect()
    assert version(started()).runtime_version == "28.5.2"
    assert runtime_config(started()).linux.cgroup_driver == pb.SYSTEMD


def test_the_version_is_unknown_before_dockers_first_answer(rt: Runtime, engine: FakeEngine) -> None:
    engine.disconnect()
    with pytest.raises(Unavailable):
        version(rt)


@pytest.mark.parametrize(("driver", "expected"), [("systemd", pb.SYSTEMD), ("cgroupfs", pb.CGROUPFS)])
def test_the_cgroup_driver_is_dockers(driver: str, expected: pb.CgroupDriver, rt: Runtime, engine: FakeEngine) -> None:
    engine.engine_info = EngineInfo(cgroup_driver=driver)
    assert runtime_config(rt).linux.cgroup_driver == expected


def test_a_daemon_without_cgroups_is_refused(rt: Runtime, engine: FakeEngine) -> None:
    engine.engine_info = EngineInfo(cgroup_driver="none")
    with pytest.raises(FailedPrecondition, match="'none'"):
        runtime_config(rt)


def test_pod_ranges_are_stored(rt: Runtime) -> None:
    update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.1.2.3/24, fd00::/64"))
    update_runtime_config(rt, network_config=pb.NetworkConfig())
    assert rt.cni.pod_cidr.ranges == ("10.1.2.0/24", "fd00::/64")
    with pytest.raises(InvalidArgument, match=r"'10\.1\.2\.0/33' is not an address range"):
        update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.1.2.0/33"))
