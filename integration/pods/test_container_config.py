"""What a container was asked to be, seen from inside of it and from the kernel."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, Pod, failure, proc_status, secured, wait_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

# --- command, environment, directory ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def echo_image(images: Images, served: Served) -> Iterator[str]:
    """An image with an entrypoint, arguments, a directory, a variable and a health check of its own."""
    reference = "node.test/echo:1"
    config: dict[str, object] = {
        "Entrypoint": ["sh", "-c", 'echo "$0 $* in $PWD with $COLOUR" >/dev/shm/told; sleep 3600', "entry"],
        "Cmd": ["of", "image"],
        "WorkingDir": "/var/www",
        "Env": ["PATH=/bin", "COLOUR=blue"],
        "Healthcheck": {"Test": ["CMD", "false"], "Interval": 1_000_000_000},
    }
    images.load(reference, config)
    wait_image(served.cri, reference)
    yield reference
    served.engine.api.remove_image(reference, force=True)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "entry of image in /var/www with blue"),
        ({"args": ["mine", "too"]}, "entry mine too in /var/www with blue"),
        (
            {"command": ["sh", "-c", 'echo "mine $* in $PWD with $COLOUR" >/dev/shm/told; sleep 3600', "x"]},
            "mine  in /var/www with blue",
        ),
        (
            {"working_dir": "/made/here", "envs": [pb.KeyValue(key="COLOUR", value=b"red")]},
            "entry of image in /made/here with red",
        ),
    ],
    ids=["all of the image", "own arguments", "own command", "own directory and variable"],
)
def test_what_is_not_given_is_the_images(kubelet: Kubelet, echo_image: str, fields: dict[str, Any], told: str) -> None:
    container = kubelet.started(kubelet.pod(), **({"image": echo_image, "command": []} | fields))

    assert wait_until(lambda: kubelet.inside(container, "cat /dev/shm/told 2>/dev/null")) == told + "\n"


def test_a_health_check_of_the_image_does_not_run(kubelet: Kubelet, pod: Pod, echo_image: str, served: Served) -> None:
    container = kubelet.started(pod, image=echo_image)

    assert "Health" not in served.engine.api.inspect_container(container)["State"]


def test_environment_values_are_bytes(kubelet: Kubelet, pod: Pod) -> None:
    values = {"PLAIN": "a b", "UTF": "grün ✓", "LINES": "one\ntwo", "EQUALS": "a=b=c", "EMPTY": "", "QUOTES": "\"'$x`"}
    envs = [pb.KeyValue(key=key, value=value.encode()) for key, value in values.items()]

    container = kubelet.started(pod, envs=envs)

    answer = kubelet.cri.exec(container, "cat", "/proc/self/environ")
    seen = dict(entry.split(b"=", 1) for entry in answer.stdout.split(b"\0") if entry)
    assert {key: seen[key.encode()].decode() for key in values} == values


def test_a_value_that_docker_cannot_carry_is_refused(kubelet: Kubelet, pod: Pod) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, envs=[pb.KeyValue(key="RAW", value=b"\xff\xfe")])

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "envs[0]" in message


@pytest.mark.parametrize("tty", [True, False])
def test_a_terminal_is_there_when_asked_for(kubelet: Kubelet, pod: Pod, tty: bool) -> None:
    container = kubelet.started(pod, "sh", "-c", "tty -s; echo $? >/dev/shm/tty; sleep 3600", tty=tty, stdin=True)

    told = wait_until(lambda: kubelet.inside(container, "cat /dev/shm/tty; rm /dev/shm/tty"))
    assert told == ("0\n" if tty else "1\n")


def test_standard_input_stays_open_when_asked_for(kubelet: Kubelet, pod: Pod) -> None:
    reading = kubelet.started(pod, "cat", stdin=True)
    closed = kubelet.started(pod, "cat")

    wait_until(lambda: kubelet.cri.container_status(closed).state == pb.CONTAINER_EXITED)
    assert kubelet.cri.container_status(reading).state == pb.CONTAINER_RUNNING


# --- privileges -------------------------------------------------------------------------------------------

NET_RAW, SYS_TIME, NET_ADMIN = 13, 25, 12


def has_capability(served: Served, container: str, bit: int) -> bool:
    return bool(int(proc_status(served, container)["CapEff"][0], 16) >> bit & 1)


def has_every_capability() -> bool:
    """Whether the bounding set of this machine has all capabilities that the kernel knows."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    bounding = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:"))
    return int(bounding.split()[1], 16) == (1 << last + 1) - 1


def test_capabilities_are_added_and_dropped(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    plain = kubelet.started(pod)
    wanted = pb.Capability(add_capabilities=["SYS_TIME"], drop_capabilities=["NET_RAW"])
    changed = kubelet.started(pod, **secured(capabilities=wanted))

    assert [has_capability(served, plain, bit) for bit in (NET_RAW, SYS_TIME)] == [True, False]
    assert [has_capability(served, changed, bit) for bit in (NET_RAW, SYS_TIME)] == [False, True]


def test_all_capabilities_can_be_dropped(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, **secured(capabilities=pb.Capability(drop_capabilities=["ALL"])))

    assert int(proc_status(served, container)["CapEff"][0], 16) == 0


def test_privileged_is_for_privileged_pods(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    if served.engine.name == "20.10" and not has_every_capability():
        pytest.skip("Engine 20.10 wants to give privileged containers capabilities that this machine has not")
    context = pb.LinuxSandboxSecurityContext(privileged=True)
    privileged = kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=context))
    container = kubelet.started(privileged, **secured(privileged=True))

    assert has_capability(served, container, NET_ADMIN)
    assert proc_status(served, container)["Seccomp"] == ["0"]
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, **secured(privileged=True))
    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "privileged" in message


@pytest.mark.parametrize("wanted", [True, False])
def test_new_privileges_can_be_forbidden(kubelet: Kubelet, pod: Pod, served: Served, wanted: bool) -> None:
    container = kubelet.started(pod, **secured(no_new_privs=wanted))

    assert proc_status(served, container)["NoNewPrivs"] == ["1" if wanted else "0"]


@pytest.mark.parametrize(
    ("profile", "mode"),
    [(pb.SecurityProfile.Unconfined, "0"), (pb.SecurityProfile.RuntimeDefault, "2")],
    ids=["unconfined", "default"],
)
def test_seccomp_is_what_was_asked_for(
    kubelet: Kubelet, pod: Pod, served: Served, profile: pb.SecurityProfile.ProfileType, mode: str
) -> None:
    container = kubelet.started(pod, **secured(seccomp=pb.SecurityProfile(profile_type=profile)))

    assert proc_status(served, container)["Seccomp"] == [mode]


def test_a_seccomp_profile_of_the_node_is_applied(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    path = tmp_path / "no-mkdir.json"
    rule = '{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}'
    path.write_text(f'{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{rule}]}}')
    profile = pb.SecurityProfile(profile_type=pb.SecurityProfile.Localhost, localhost_ref=str(path))

    container = kubelet.started(pod, **secured(seccomp=profile))

    assert "not permitted" in kubelet.inside(container, "mkdir /tmp/x")


@pytest.mark.parametrize("readonly", [True, False])
def test_the_root_file_system_can_be_read_only(kubelet: Kubelet, pod: Pod, readonly: bool) -> None:
    container = kubelet.started(pod, **secured(readonly_rootfs=readonly))

    answer = kubelet.cri.exec(container, "touch", "/new")
    assert (answer.exit_code, b"Read-only" in answer.stderr) == ((1, True) if readonly else (0, False))


def test_paths_are_masked_as_asked_for(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, **secured(masked_paths=["/etc/passwd"], readonly_paths=["/proc/sys"]))

    assert kubelet.inside(container, "cat /etc/passwd") == ""
    assert "Read-only" in kubelet.inside(container, "echo 1 >/proc/sys/kernel/shm_rmid_forced")
