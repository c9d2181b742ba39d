"""Fields of PodSandboxConfig, seen on the pause container and from inside the pod."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, failure, in_context, pid_of, proc_status
from shim.api.v1 import api_pb2 as pb

Profile = pb.SecurityProfile


@pytest.mark.parametrize(
    ("context", "mode"),
    [
        ({}, "2"),
        ({"seccomp": Profile(profile_type=Profile.Unconfined)}, "0"),
        ({"seccomp": Profile(profile_type=Profile.RuntimeDefault)}, "2"),
        ({"seccomp_profile_path": "unconfined"}, "0"),
    ],
    ids=["nothing", "unconfined", "default", "old unconfined"],
)
def test_pause_has_the_requested_seccomp_profile(
    kubelet: Kubelet, served: Served, context: dict[str, Any], mode: str
) -> None:
    pod = kubelet.pod(**in_context(**context))

    assert proc_status(served, pod.id)["Seccomp"] == [mode]


def test_pauses_default_profile_allows_less_than_dockers(kubelet: Kubelet, served: Served) -> None:
    api, pod = served.engine.api, kubelet.pod()
    options = api.inspect_container(pod.id)["HostConfig"]["SecurityOpt"]
    if served.engine.name == "20.10":
        assert not any(option.startswith("seccomp={") for option in options)
        return

    other = api.create_container(kubelet.image, ["mkdir", "/x"], host_config={"SecurityOpt": options})["Id"]
    try:
        api.start(other)
        assert api.wait(other)["StatusCode"] == 1
        assert b"Function not implemented" in api.logs(other)
    finally:
        api.remove_container(other, force=True)


def test_pause_runs_under_a_profile_of_the_node(kubelet: Kubelet, served: Served, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_LOG"}))
    profile = Profile(profile_type=Profile.Localhost, localhost_ref=str(path))

    pod = kubelet.pod(**in_context(seccomp=profile))

    assert proc_status(served, pod.id)["Seccomp"] == ["2"]


@pytest.mark.parametrize(
    ("field", "context"),
    [
        ("seccomp: seccomp profile /none-such", {"seccomp_profile_path": "localhost//none-such"}),
        (
            "apparmor: AppArmor profile 'none'",
            {"apparmor": Profile(profile_type=Profile.Localhost, localhost_ref="none")},
        ),
        ("selinux_options.level 's 0'", {"selinux_options": pb.SELinuxOption(level="s 0")}),
    ],
)
def test_a_pod_with_an_unavailable_profile_is_refused_and_leaves_nothing(
    kubelet: Kubelet, served: Served, field: str, context: dict[str, Any]
) -> None:
    before = served.snapshot()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(**in_context(**context))

    assert f"config.linux.security_context.{field}" in failure(refusal)[1]
    assert served.snapshot() == before


@pytest.mark.parametrize("readonly", [True, False])
def test_the_root_of_pause_can_be_read_only(kubelet: Kubelet, served: Served, readonly: bool) -> None:
    pod = kubelet.pod(**in_context(readonly_rootfs=readonly))

    mounts = [line.split() for line in Path(f"/proc/{pid_of(served, pod.id)}/mountinfo").read_text().splitlines()]
    root = next(fields for fields in mounts if fields[4] == "/")
    assert ("ro" in root[5].split(",")) == readonly


def test_a_privileged_pod_has_an_ordinary_pause(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(**in_context(privileged=True))

    status = proc_status(served, pod.id)
    assert (status["Seccomp"], status["NoNewPrivs"]) == (["2"], ["1"])
    assert not int(status["CapBnd"][0], 16) >> 21 & 1  # SYS_ADMIN


@pytest.mark.parametrize("windows", ["security_context"])
def test_windows_fields_are_refused(kubelet: Kubelet, windows: str) -> None:
    config = pb.WindowsPodSandboxConfig(**{windows: pb.WindowsSandboxSecurityContext(run_as_username="Administrator")})

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(windows=config)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert f"config.windows.{windows}" in message
