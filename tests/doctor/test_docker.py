import socket
from pathlib import Path

import msgspec
import pytest

from shim.config.model import Config
from shim.dockerd.runc import ORDERED_RUNTIME, ORDERS_OPTION
from shim.doctor import docker
from shim.doctor.docker import check_docker, check_engine_at, check_settings
from shim.doctor.findings import Finding
from shim.doctor.kubelet_settings import Kubelet, read_kubelet
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, ShimError, Unavailable
from shim.engine.answers import Runtime, SwarmInfo
from shim.engine.client import DockerEngine
from tests.fakes.engine import FakeEngine
from tests.users import unprivileged_files


def found(engine: FakeEngine, **settings: object) -> dict[str, Finding]:
    config = msgspec.structs.replace(Config(restrict_oom_score_adj="false"), **settings)
    kubelet = read_kubelet(config.kubelet_root_dir, packages=[]) if "kubelet_root_dir" in settings else Kubelet()
    return {finding.subject: finding for finding in check_docker(engine, config, kubelet=kubelet, environ={})}


def change(engine: FakeEngine, **info: object) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, **info)


def test_a_docker_that_does_not_answer_fails(engine: FakeEngine) -> None:
    engine.fail_next("info", Unavailable("docker cannot be reached: connect to /run/no.sock"))

    (finding,) = check_docker(engine, Config(), kubelet=Kubelet(), environ={})
    assert (finding.level, finding.text) == ("FAIL", "docker cannot be reached: connect to /run/no.sock")
    assert "name its socket (hosts of dockerd) in docker_endpoint" in finding.advice


def test_a_socket_that_a_setting_names_by_mistake(engine: FakeEngine) -> None:
    engine.fail_next("info", Unavailable("docker cannot be reached: connect to /run/dockr.sock"))

    (finding,) = check_docker(engine, Config(docker_endpoint="unix:///run/dockr.sock"), kubelet=Kubelet(), environ={})

    assert "correct docker_endpoint where it is set (pydockershim config | grep docker_endpoint)" in finding.advice


@pytest.mark.parametrize(
    ("content", "levels"),
    [(None, []), ("", []), ('{"live-restore": true}', []), ('{"live-restore": tru}', ["warn"]), ("\xff", ["warn"])],
)
def test_settings_with_which_docker_does_not_start_again(
    tmp_path: Path, content: str | None, levels: list[str]
) -> None:
    file = tmp_path / "daemon.json"
    if content is not None:
        file.write_text(content, encoding="latin-1")

    findings = list(check_settings(file))

    assert [finding.level for finding in findings] == levels
    assert all(f"python3 -m json.tool {file}" in finding.advice for finding in findings)


def test_a_rootless_docker_fails(engine: FakeEngine) -> None:
    change(engine, security_options=["name=rootless"])

    (finding,) = check_docker(engine, Config(), kubelet=Kubelet(), environ={})
    assert finding.level == "FAIL"
    assert "rootless" in finding.text


@pytest.mark.parametrize(
    ("error", "word"),
    [
        pytest.param(FailedPrecondition("the docker engine speaks api version 1.38"), "20.10 or newer", id="version"),
        pytest.param(DeadlineExceeded("docker did not answer within 120 s"), "systemctl restart docker", id="hangs"),
        pytest.param(ShimError("docker's answer cannot be read"), "journalctl --unit docker", id="odd"),
    ],
)
def test_what_to_do_follows_from_the_error(engine: FakeEngine, error: ShimError, word: str) -> None:
    engine.fail_next("info", error)

    (finding,) = check_docker(engine, Config(), kubelet=Kubelet(), environ={})
    assert word in finding.advice
    assert "systemctl start docker" not in finding.advice


def test_a_socket_that_is_not_for_this_user(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        engine = DockerEngine(f"unix://{path}", request_timeout=60)
        with unprivileged_files():
            (finding,) = check_docker(engine, Config(), kubelet=Kubelet(), environ={})
        engine.close()

    assert "permission denied" in finding.text
    assert finding.advice == "run as root"


def test_a_good_one(engine: FakeEngine) -> None:
    change(engine, cgroup_version="2", cgroup_driver="systemd", live_restore_enabled=True)

    findings = found(engine)
    assert {finding.level for finding in findings.values()} == {"ok"}
    assert findings["docker"].text == "28.5.2, API 1.51, overlay2 in /var/lib/docker"
    assert findings["cgroups"].text == "version 2, driver systemd"


@pytest.mark.parametrize(
    ("info", "subject", "level", "word"),
    [
        pytest.param({"cgroup_version": "1"}, "cgroups", "warn", "failCgroupV1", id="cgroup v1"),
        pytest.param({"cgroup_driver": "none"}, "cgroups", "FAIL", "delegate", id="no cgroups"),
        pytest.param({"security_options": ["name=userns"]}, "user namespace", "warn", "userns-remap", id="userns"),
        pytest.param({"live_restore_enabled": False}, "live-restore", "warn", "daemon.json", id="no live-restore"),
    ],
)
def test_each_fault_of_docker_has_its_level_and_advice(
    engine: FakeEngine, info: dict[str, object], subject: str, level: str, word: str
) -> None:
    change(engine, **info)

    finding = found(engine)[subject]
    assert finding.level == level
    assert word in finding.advice


def with_runtime(engine: FakeEngine, program: Path, *, images: Path) -> None:
    runtime = Runtime(path=str(program), runtime_args=[ORDERS_OPTION, "/orders"])
    change(engine, runtimes={ORDERED_RUNTIME: runtime}, docker_root_dir=str(images))


def test_user_namespaces_without_the_runtime_are_offered(engine: FakeEngine) -> None:
    finding = found(engine)["user namespace"]

    assert finding.level == "ok"
    assert finding.text.endswith("pydockershim install --docker")


def test_a_runtime_that_is_not_there_is_named(engine: FakeEngine, tmp_path: Path) -> None:
    with_runtime(engine, tmp_path / "oci-runtime", images=tmp_path)

    finding = found(engine)["user namespace"]
    assert (finding.level, finding.advice) == ("warn", "pydockershim install --docker")
    assert f"{tmp_path}/oci-runtime is no program" in finding.text


def test_why_this_node_cannot_have_user_namespaces(engine: FakeEngine, tmp_path: Path) -> None:
    program = tmp_path / "oci-runtime"
    program.touch(0o755)
    with_runtime(engine, program, images=tmp_path / "absent")

    finding = found(engine)["user namespace"]
    assert finding.level == "warn"
    assert finding.text.startswith(f"pods cannot have their own: {tmp_path}/absent")


def test_live_restore_is_not_advised_in_a_swarm(engine: FakeEngine) -> None:
    change(engine, live_restore_enabled=False, swarm=SwarmInfo(local_node_state="active"))

    finding = found(engine)["live-restore"]
    assert finding.level == "warn"
    assert finding.advice.startswith("take this node out of its swarm (docker swarm leave)")


def test_a_kubelet_that_accepts_cgroup_v1(engine: FakeEngine, tmp_path: Path) -> None:
    change(engine, cgroup_version="1", cgroup_driver="systemd")
    assert "SystemVerification" in found(engine, kubelet_root_dir=tmp_path)["cgroups"].advice

    (tmp_path / "config.yaml").write_text("cgroupDriver: systemd\nfailCgroupV1: false\n")
    finding = found(engine, kubelet_root_dir=tmp_path)["cgroups"]
    accepted = f"failCgroupV1: false in {tmp_path}/config.yaml"
    assert finding == Finding("ok", "cgroups", f"version 1, driver systemd, which the kubelet accepts ({accepted})")


@pytest.mark.parametrize("version", ["23.0.0", "23.0.6", "24.0.0-rc.1", "24.0.2", "23.0.6+dfsg1"])
def test_a_release_that_kills_when_its_client_leaves(engine: FakeEngine, version: str) -> None:
    change(engine, server_version=version)

    finding = found(engine)["docker release"]
    assert (finding.level, finding.text.split()[0]) == ("warn", version)
    assert "23.0.7" in finding.advice


@pytest.mark.parametrize("version", ["20.10.0", "20.10.24+dfsg1", "20.10.26"])
def test_a_release_whose_networks_deadlock(engine: FakeEngine, version: str) -> None:
    change(engine, server_version=version)

    finding = found(engine)["docker release"]
    assert (finding.level, finding.text.split()[0]) == ("warn", version)
    assert "20.10.27" in finding.advice


@pytest.mark.parametrize("version", ["20.10.27", "23.0.7", "23.0.18", "24.0.3", "25.0.0", "28.5.2", "dev", ""])
def test_a_release_without_such_faults(engine: FakeEngine, version: str) -> None:
    change(engine, server_version=version)

    assert "docker release" not in found(engine)


def test_one_that_accepts_and_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "_CALL_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "docker.sock"))
        silent.listen()
        (finding,) = check_engine_at(Config(docker_endpoint=f"unix://{tmp_path}/docker.sock"), {})

    assert finding.level == "FAIL"
    assert "within 0.2 s" in finding.text
    assert "systemctl restart docker" in finding.advice


def test_what_it_finds_wrong_itself(engine: FakeEngine) -> None:
    change(engine, warnings=["WARNING: No swap limit support"])

    assert found(engine)["docker info"] == Finding("warn", "docker info", "No swap limit support")


def test_forwarding_is_that_of_the_node_and_not_of_the_time_docker_started(engine: FakeEngine) -> None:
    change(engine, warnings=["WARNING: IPv4 forwarding is disabled"])

    assert "docker info" not in found(engine)


def test_oom_scores_it_cannot_lower(engine: FakeEngine) -> None:
    finding = found(engine, restrict_oom_score_adj="true")["oom scores"]

    assert finding.level == "warn"
    assert "CAP_SYS_RESOURCE" in finding.advice


def test_the_pause_image(engine: FakeEngine) -> None:
    assert found(engine)["pause image"].text == "registry.k8s.io/pause:3.10.2 is here"
    assert found(engine, pod_infra_container_image="r.example/pause:1")["pause image"].level == "ok"

    engine.fail_next("inspect_image", Unavailable("docker is gone"))
    assert found(engine)["pause image"].level == "FAIL"


@pytest.mark.parametrize(("driver", "level"), [("overlay2", None), ("vfs", None), ("btrfs", "warn")])
def test_a_storage_driver_that_shows_no_writable_layers(engine: FakeEngine, driver: str, level: str | None) -> None:
    change(engine, driver=driver)

    finding = found(engine).get("storage driver")
    assert (finding.level if finding else None) == level
