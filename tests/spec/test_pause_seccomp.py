"""The pause containers that get the pause profile, and the profile compared with Docker's."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.engine.answers import ImageSettings
from shim.engine.answers import Runtime as KnownRuntime
from shim.runtime import Runtime
from shim.sandbox.run import run_pod_sandbox
from shim.spec.pause_seccomp import PROFILE
from tests.fakes.engine import FakeEngine
from tests.pods import pod_config, ready_pod


def _with_pause(rt: Runtime, engine: FakeEngine, entrypoint: str) -> Runtime:
    """Return the runtime with a pause image."""
    reference = f"r.example{entrypoint}:1"
    engine.add_image(reference, ImageSettings(entrypoint=[entrypoint]))
    return replace(rt, config=msgspec.structs.replace(rt.config, pod_infra_container_image=reference))


@pytest.fixture
def rt(rt: Runtime, engine: FakeEngine) -> Runtime:
    return _with_pause(rt, engine, "/pause")


def _seccomp(engine: FakeEngine, pod: str) -> list[str]:
    options: list[str] = engine.containers[pod].host["SecurityOpt"]
    return [option.removeprefix("seccomp=") for option in options if option.startswith("seccomp=")]


def test_pause_may_make_the_calls_it_needs(rt: Runtime, engine: FakeEngine) -> None:
    assert _seccomp(engine, ready_pod(rt)) == [PROFILE]


def test_other_calls_fail_with_enosys() -> None:
    profile: dict[str, Any] = msgspec.json.decode(PROFILE)
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    allowed = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert not allowed & {
        "socket",
        "connect",
        "mount",
        "ptrace",
        "bpf",
        "setns",
        "unshare",
        "clone3",
        "mkdirat",
        "chmod",
    }


@pytest.mark.parametrize("profile_type", [pb.SecurityProfile.Unconfined, pb.SecurityProfile.RuntimeDefault])
def test_an_explicit_profile_replaces_the_pause_profile(
    rt: Runtime, engine: FakeEngine, profile_type: pb.SecurityProfile.ProfileType
) -> None:
    context = pb.LinuxSandboxSecurityContext(
        namespace_options=pb.NamespaceOption(network=pb.NODE), seccomp=pb.SecurityProfile(profile_type=profile_type)
    )
    config = pod_config(linux=pb.LinuxPodSandboxConfig(security_context=context))
    unconfined = profile_type == pb.SecurityProfile.Unconfined
    pod = run_pod_sandbox(rt, config=config, runtime_handler="")
    assert _seccomp(engine, pod) == (["unconfined"] if unconfined else [PROFILE])


def test_the_administrators_default_profile_replaces_the_pause_profile(rt: Runtime, engine: FakeEngine) -> None:
    own = ["name=seccomp,profile=/etc/docker/seccomp.json"]
    engine.engine_info = msgspec.structs.replace(engine.engine_info, security_options=own)
    rt.facts.info(max_age=0)
    assert _seccomp(engine, ready_pod(rt)) == []


def test_an_engine_with_only_eperm_keeps_dockers_profile(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = (1, 41)
    assert _seccomp(engine, ready_pod(rt)) == ["builtin"]


def test_another_program_keeps_dockers_profile(rt: Runtime, engine: FakeEngine) -> None:
    assert _seccomp(engine, ready_pod(_with_pause(rt, engine, "/usr/bin/pod"))) == ["builtin"]


def test_an_emulated_program_keeps_dockers_profile(rt: Runtime, engine: FakeEngine) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, architecture="aarch64")
    rt.facts.info(max_age=0)
    assert _seccomp(engine, ready_pod(rt)) == ["builtin"]


def test_another_oci_runtime_keeps_dockers_profile(rt: Runtime, engine: FakeEngine) -> None:
    more = {"runc": KnownRuntime(path="runc"), "gvisor": KnownRuntime(path="runsc")}
    engine.engine_info = msgspec.structs.replace(engine.engine_info, runtimes=more)
    assert _seccomp(engine, run_pod_sandbox(rt, config=pod_config(), runtime_handler="gvisor")) == ["builtin"]
