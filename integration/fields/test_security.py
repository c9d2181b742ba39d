"""Confinement of containers, seen from inside and from the kernel, and the requests that are refused."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod, failure, in_context, proc_status, secured
from shim.api.v1 import api_pb2 as pb

MIB = 1 << 20
Profile = pb.SecurityProfile


def localhost(path: Path | str) -> Profile:
    return Profile(profile_type=Profile.Localhost, localhost_ref=str(path))


def refused(kubelet: Kubelet, pod: Pod, **context: Any) -> tuple[grpc.StatusCode, str]:
    """Assert that CreateContainer refuses this security context; return code and message."""
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, **secured(**context))
    return failure(refusal)


# --- seccomp ----------------------------------------------------------------------------------------------

NO_MKDIR = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}],
}


@pytest.fixture
def no_mkdir(tmp_path: Path) -> Path:
    """A profile that denies one system call with an unusual error."""
    path = tmp_path / "no-mkdir.json"
    path.write_text(json.dumps(NO_MKDIR))
    return path


@pytest.mark.parametrize(
    ("context", "mode"),
    [
        ({}, "0"),
        ({"seccomp": Profile(profile_type=Profile.Unconfined)}, "0"),
        ({"seccomp": Profile(profile_type=Profile.RuntimeDefault)}, "2"),
        ({"seccomp_profile_path": "unconfined"}, "0"),
        ({"seccomp_profile_path": "runtime/default"}, "2"),
        ({"seccomp_profile_path": "docker/default"}, "2"),
        ({"seccomp_profile_path": "unconfined", "seccomp": Profile(profile_type=Profile.RuntimeDefault)}, "2"),
    ],
    ids=["nothing", "unconfined", "default", "old unconfined", "old default", "oldest default", "the new one wins"],
)
def test_the_requested_seccomp_profile_is_in_force(
    kubelet: Kubelet, pod: Pod, served: Served, context: dict[str, Any], mode: str
) -> None:
    container = kubelet.started(pod, **secured(**context))

    assert proc_status(served, container)["Seccomp"] == [mode]
    assert kubelet.inside(container, "grep Seccomp: /proc/self/status").split() == ["Seccomp:", mode]


def test_a_profile_of_the_node_is_applied_with_its_error_number(kubelet: Kubelet, pod: Pod, no_mkdir: Path) -> None:
    link = no_mkdir.with_name("link.json")
    link.symlink_to(no_mkdir)
    for context in (
        {"seccomp": localhost(no_mkdir)},
        {"seccomp": localhost(link)},
        {"seccomp_profile_path": f"localhost/{no_mkdir}"},
    ):
        container = kubelet.started(pod, **secured(**context))

        assert "Operation not supported" in kubelet.inside(container, "mkdir /tmp/x")
        assert kubelet.inside(container, "touch /tmp/x") == ""


def test_a_profile_without_rules_is_applied(kubelet: Kubelet, pod: Pod, served: Served, tmp_path: Path) -> None:
    path = tmp_path / "log-all.json"
    path.write_text('{"defaultAction": "SCMP_ACT_LOG"}')

    container = kubelet.started(pod, **secured(seccomp=localhost(path)))

    assert proc_status(served, container)["Seccomp"] == ["2"]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "no such file"),
    "empty": (lambda path: path.touch(), "not valid"),
    "broken": (lambda path: path.write_text("{"), "not valid"),
    "deep": (lambda path: path.write_text("[" * 500_000), "not valid"),
    "no object": (lambda path: path.write_text("[]"), "not valid"),
    "no default action": (lambda path: path.write_text("{}"), "defaultAction"),
    # Docker would run the container without any filter.
    "empty default action": (lambda path: path.write_text('{"defaultAction": ""}'), "defaultAction"),
    "FIFO": (_fifo, "not a regular file"),
    "directory": (lambda path: path.mkdir(), "not a regular file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "1 GiB": (_huge, "more than 1048576 bytes"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "no such file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic link"),
}


MALFORMED: dict[str, dict[str, Any]] = {
    "unknown action": {"syscalls": [{"names": ["mkdir"], "action": "DENY"}]},
    "unknown operator": {
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 0, "op": "=="}]}]
    },
    "both kinds of architectures": {
        "architectures": ["SCMP_ARCH_X86_64"],
        "archMap": [{"architecture": "SCMP_ARCH_X86_64"}],
    },
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_container_with_a_malformed_profile_does_not_start(
    kubelet: Kubelet, pod: Pod, tmp_path: Path, kind: str
) -> None:
    """Docker or runc refuses the profile at the start; the container never runs without it."""
    path = tmp_path / "malformed.json"
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW"} | MALFORMED[kind]))

    container = kubelet.created(pod, **secured(seccomp=localhost(path)))

    with pytest.raises(grpc.RpcError):
        kubelet.cri.start(container)

    assert kubelet.cri.container_status(container).state != pb.CONTAINER_RUNNING


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_unusable_profile_is_refused_when_the_container_is_created(
    kubelet: Kubelet, pod: Pod, served: Served, tmp_path: Path, kind: str
) -> None:
    make, reason = HOSTILE[kind]
    path = tmp_path / "hostile.json"
    make(path)
    memory, began = served.server.rss(), time.monotonic()

    code, message = refused(kubelet, pod, seccomp=localhost(path))

    assert code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}
    assert f"config.linux.security_context.seccomp: seccomp profile {path}" in message
    assert reason in message
    assert time.monotonic() - began < 60
    assert served.server.rss() - memory < 64 * MIB


@pytest.mark.parametrize("reference", ["", "profiles/a.json", "localhost/a.json"])
def test_a_profile_needs_an_absolute_path(kubelet: Kubelet, pod: Pod, reference: str) -> None:
    code, message = refused(kubelet, pod, seccomp=localhost(reference))

    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "config.linux.security_context.seccomp" in message


# --- AppArmor, SELinux ------------------------------------------------------------------------------------


def docker_options(served: Served, container: str, option: str) -> list[str]:
    """Return the values that Docker got for a security option."""
    options: list[str] = served.engine.api.inspect_container(container)["HostConfig"]["SecurityOpt"]
    return [value for name, _, value in (each.partition("=") for each in options) if name == option]


@pytest.mark.parametrize(
    ("context", "profiles"),
    [
        ({"apparmor": Profile(profile_type=Profile.RuntimeDefault)}, []),
        ({"apparmor": Profile(profile_type=Profile.Unconfined)}, ["unconfined"]),
        ({"apparmor_profile": "runtime/default"}, []),
        ({"apparmor_profile": "unconfined"}, ["unconfined"]),
        ({"apparmor": Profile(profile_type=Profile.Unconfined), "apparmor_profile": "localhost/none"}, ["unconfined"]),
    ],
    ids=["default", "unconfined", "old default", "old unconfined", "the new one wins"],
)
def test_default_and_unconfined_apparmor_need_no_profile_of_the_node(
    kubelet: Kubelet, pod: Pod, served: Served, context: dict[str, Any], profiles: list[str]
) -> None:
    container = kubelet.started(pod, **secured(**context))

    assert docker_options(served, container, "apparmor") == profiles
    assert kubelet.cri.exec(container, "true").exit_code == 0


@pytest.mark.parametrize(
    "context",
    [
        {"apparmor": localhost("localhost/none-such")},
        {"apparmor": localhost("none-such"), "apparmor_profile": "unconfined"},
        {"apparmor_profile": "localhost/none-such"},
    ],
    ids=["prefixed", "bare", "old"],
)
def test_an_apparmor_profile_that_is_not_loaded_is_refused(kubelet: Kubelet, pod: Pod, context: dict[str, Any]) -> None:
    code, message = refused(kubelet, pod, **context)

    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "config.linux.security_context.apparmor: AppArmor profile 'none-such' is not loaded" in message


@pytest.mark.parametrize(
    "context",
    [{"apparmor": localhost("localhost/none-such")}, {"apparmor_profile": "localhost/none-such"}],
    ids=["new", "old"],
)
def test_an_apparmor_profile_for_a_privileged_container_is_refused(kubelet: Kubelet, context: dict[str, Any]) -> None:
    """Docker would run the container without it."""
    code, message = refused(kubelet, kubelet.pod(**in_context(privileged=True)), privileged=True, **context)

    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "config.linux.security_context.apparmor: Docker cannot confine a privileged container" in message
    assert "'none-such'" in message


@pytest.mark.skipif(Path("/sys/fs/selinux/enforce").exists(), reason="what the policy allows is another question")
def test_selinux_options_do_no_harm_where_selinux_is_off(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    options = pb.SELinuxOption(user="system_u", role="system_r", type="container_t", level="s0:c1,c5")
    container = kubelet.started(pod, **secured(selinux_options=options))

    parts = ["user:system_u", "role:system_r", "type:container_t", "level:s0:c1,c5"]
    assert docker_options(served, container, "label") == parts
    assert kubelet.cri.exec(container, "true").exit_code == 0


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("type", "a:b"),
        ("user", "a b"),
        ("role", "a,b"),
    ],
)
def test_malformed_selinux_options_are_refused(kubelet: Kubelet, pod: Pod, part: str, value: str) -> None:
    code, message = refused(kubelet, pod, selinux_options=pb.SELinuxOption(**{part: value}))

    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert f"config.linux.security_context.selinux_options.{part} {value!r}" in message


# --- privileges -------------------------------------------------------------------------------------------

NET_ADMIN, NET_RAW, SYS_TIME = 12, 13, 25
DOCKERS_OWN = 0xA80425FB
"""Docker's default capabilities."""


def has_every_capability() -> bool:
    """Return whether this machine's bounding set has all capabilities that the kernel knows."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    bounding = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:"))
    return int(bounding.split()[1], 16) == (1 << last + 1) - 1


def skip_where_all_capabilities_are_too_many(served: Served) -> None:
    if served.engine.name == "20.10" and not has_every_capability():
        pytest.skip("Engine 20.10 wants to give capabilities that this machine has not")


def capabilities(served: Served, container: str) -> int:
    """Return the effective capabilities, which for root are the whole bounding set."""
    status = proc_status(served, container)
    assert status["CapBnd"] == status["CapEff"]
    return int(status["CapEff"][0], 16)


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        ([], [], DOCKERS_OWN),
        (["SYS_TIME"], ["NET_RAW"], (DOCKERS_OWN | 1 << SYS_TIME) ^ 1 << NET_RAW),
        (["cap_sys_time"], ["Net_Raw"], (DOCKERS_OWN | 1 << SYS_TIME) ^ 1 << NET_RAW),
        ([], ["ALL"], 0),
        (["NET_RAW", "NET_ADMIN"], ["all"], 1 << NET_RAW | 1 << NET_ADMIN),
        (["NET_RAW"], ["NET_RAW"], DOCKERS_OWN ^ 1 << NET_RAW),
        (["ALL"], ["ALL"], 0),
        (["NET_RAW"], ["CHECKPOINT_RESTORE"], DOCKERS_OWN),
    ],
    ids=["Docker's", "plus and minus", "spelled", "none", "none but", "drop wins", "drop all wins", "new to 20.10"],
)
def test_a_container_has_exactly_the_requested_capabilities(
    kubelet: Kubelet, pod: Pod, served: Served, add: list[str], drop: list[str], expected: int
) -> None:
    wanted = pb.Capability(add_capabilities=add, drop_capabilities=drop)
    container = kubelet.started(pod, **secured(capabilities=wanted))

    assert f"{capabilities(served, container):x}" == f"{expected:x}"


def test_all_capabilities_except_one_can_be_had(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    skip_where_all_capabilities_are_too_many(served)
    wanted = pb.Capability(add_capabilities=["ALL"], drop_capabilities=["NET_RAW"])

    found = capabilities(served, kubelet.started(pod, **secured(capabilities=wanted)))

    assert found >> SYS_TIME & 1
    assert not found >> NET_RAW & 1


@pytest.mark.parametrize("name", ["NONE_SUCH", "", "CAP_ALL", " NET_RAW", "CAP_CAP_NET_RAW"])
@pytest.mark.parametrize("list_name", ["add_capabilities", "drop_capabilities", "add_ambient_capabilities"])
def test_an_unknown_capability_is_refused(kubelet: Kubelet, pod: Pod, list_name: str, name: str) -> None:
    code, message = refused(kubelet, pod, capabilities=pb.Capability(**{list_name: ["KILL", name]}))

    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert f"config.linux.security_context.capabilities.{list_name}[1] {name!r}" in message


def test_a_capability_that_the_engine_does_not_know_is_refused_with_the_version_that_does(
    kubelet: Kubelet, pod: Pod, served: Served
) -> None:
    wanted = pb.Capability(add_capabilities=["BPF"])
    if served.engine.name == "20.10":
        code, message = refused(kubelet, pod, capabilities=wanted)
        assert code == grpc.StatusCode.UNIMPLEMENTED
        assert message.endswith("BPF: needs Docker Engine 23.0 (API 1.42); this one speaks 1.41")
    else:
        assert capabilities(served, kubelet.started(pod, **secured(capabilities=wanted))) >> 39 & 1


def test_a_privileged_container_has_every_privilege(kubelet: Kubelet, pod: Pod, served: Served, no_mkdir: Path) -> None:
    code, message = refused(kubelet, pod, privileged=True)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "config.linux.security_context.privileged: the pod sandbox is not privileged" in message

    skip_where_all_capabilities_are_too_many(served)
    privileged = kubelet.pod(**in_context(privileged=True))
    container = kubelet.started(privileged, **secured(privileged=True, seccomp=localhost(no_mkdir)))

    assert capabilities(served, container) >> NET_ADMIN & 1
    assert proc_status(served, container)["Seccomp"] == ["0"]
    assert kubelet.inside(container, "mkdir /tmp/x; ls /dev/full") == "/dev/full\n"


def test_a_pod_may_become_privileged_when_its_container_is_created(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    """As with `kubectl debug --profile=sysadmin`: the sandbox was made unprivileged."""
    skip_where_all_capabilities_are_too_many(served)
    now = pb.PodSandboxConfig()
    now.CopyFrom(pod.config)
    now.linux.security_context.privileged = True

    container = kubelet.started(Pod(pod.id, now), **secured(privileged=True))

    assert capabilities(served, container) >> NET_ADMIN & 1


@pytest.mark.parametrize("wanted", [True, False])
def test_new_privileges_can_be_forbidden(kubelet: Kubelet, pod: Pod, served: Served, wanted: bool) -> None:
    container = kubelet.started(pod, **secured(no_new_privs=wanted))

    assert proc_status(served, container)["NoNewPrivs"] == ["1" if wanted else "0"]


# --- the file system of the kernel ------------------------------------------------------------------------

SHOWN = "test -c /proc/uptime && echo hidden; (echo 0 >/proc/sys/kernel/shm_rmid_forced) 2>/dev/null && echo writable"


@pytest.mark.parametrize(
    ("masked", "readonly", "seen"),
    [
        ([], [], "writable\n"),
        (["/proc/uptime"], [], "hidden\nwritable\n"),
        ([], ["/proc/sys"], ""),
        (["/proc/uptime", "/proc/none-such"], ["/proc/sys", "/none-such"], "hidden\n"),
        (["proc/uptime"], ["proc/sys"], "hidden\n"),
    ],
    ids=["none", "masked", "read-only", "both, and what is not there", "relative"],
)
def test_exactly_the_requested_paths_are_hidden(
    kubelet: Kubelet, pod: Pod, masked: list[str], readonly: list[str], seen: str
) -> None:
    container = kubelet.started(pod, **secured(masked_paths=masked, readonly_paths=readonly))

    assert kubelet.inside(container, SHOWN) == seen


def test_no_path_of_a_privileged_container_is_hidden_or_read_only(kubelet: Kubelet, served: Served) -> None:
    """Kubelets send their lists for every container, and kube-proxy writes below /proc/sys."""
    skip_where_all_capabilities_are_too_many(served)
    pod = kubelet.pod(**in_context(privileged=True))
    paths = {"masked_paths": ["/proc/uptime"], "readonly_paths": ["/proc/sys"]}

    container = kubelet.started(pod, **secured(privileged=True, **paths))

    assert kubelet.inside(container, SHOWN) == "writable\n"


def test_files_and_directories_of_the_image_can_be_hidden(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, **secured(masked_paths=["/etc/passwd", "/var/www"], readonly_paths=["/tmp"]))

    assert kubelet.inside(container, "cat /etc/passwd; ls /var/www") == ""
    assert "Read-only" in kubelet.inside(container, "touch /tmp/x")


@pytest.mark.parametrize("readonly", [True, False])
def test_the_root_file_system_can_be_read_only(kubelet: Kubelet, pod: Pod, readonly: bool) -> None:
    container = kubelet.started(pod, **secured(readonly_rootfs=readonly))

    answer = kubelet.cri.exec(container, "touch", "/new")
    assert (answer.exit_code, b"Read-only" in answer.stderr) == ((1, True) if readonly else (0, False))


# --- user namespaces --------------------------------------------------------------------------------------


def in_userns(**fields: Any) -> dict[str, Any]:
    return {"namespace_options": pb.NamespaceOption(userns_options=pb.UserNamespace(**fields))}


def test_a_container_with_the_nodes_user_namespace_is_in_it(kubelet: Kubelet) -> None:
    context = pb.LinuxSandboxSecurityContext(**in_userns(mode=pb.NODE))
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=context))
    container = kubelet.started(pod, **secured(**in_userns(mode=pb.NODE)))

    own = str(Path("/proc/self/ns/user").readlink())
    assert kubelet.inside(container, "readlink /proc/self/ns/user") == own + "\n"
    assert kubelet.cri.sandbox_status(pod.id).linux.namespaces.options.userns_options.mode == pb.NODE


MAPPING = [pb.IDMapping(host_id=100000, container_id=0, length=65536)]
Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mode": pb.POD}, Code.INVALID_ARGUMENT),
        ({"mode": pb.NODE, "uids": MAPPING}, Code.INVALID_ARGUMENT),
        ({"mode": pb.CONTAINER}, Code.INVALID_ARGUMENT),
        ({"mode": pb.TARGET}, Code.INVALID_ARGUMENT),
    ],
    ids=["pod", "node with mappings", "container", "target"],
)
def test_other_user_namespaces_are_refused(
    kubelet: Kubelet, pod: Pod, options: dict[str, Any], code: grpc.StatusCode
) -> None:
    reported, message = refused(kubelet, pod, **in_userns(**options))
    assert (reported, "config.linux.security_context.namespace_options.userns_options" in message) == (code, True)

    context = pb.LinuxSandboxSecurityContext(**in_userns(**options))
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=context))
    assert failure(refusal)[0] == code
