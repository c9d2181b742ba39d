"""What a container was asked to be, seen from inside of it and from the kernel."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import Cri
from integration.pods.kubelet import Kubelet, Pod, failure, wait_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


def secured(**fields: Any) -> dict[str, pb.LinuxContainerConfig]:
    """The field `linux` of a container with a security context."""
    return {"linux": pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(**fields))}


def inside(kubelet: Kubelet, container: str, script: str) -> str:
    answer = kubelet.cri.exec(container, "sh", "-c", script)
    return (answer.stdout + answer.stderr).decode()


def proc_status(served: Served, container: str) -> dict[str, list[str]]:
    """Fields of /proc/<pid>/status of a container's first process."""
    pid = served.engine.api.inspect_container(container)["State"]["Pid"]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, value in (line.split(":", 1) for line in lines)}


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

    assert wait_until(lambda: inside(kubelet, container, "cat /dev/shm/told 2>/dev/null")) == told + "\n"


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

    told = wait_until(lambda: inside(kubelet, container, "cat /dev/shm/tty; rm /dev/shm/tty"))
    assert told == ("0\n" if tty else "1\n")


def test_standard_input_stays_open_when_asked_for(kubelet: Kubelet, pod: Pod) -> None:
    reading = kubelet.started(pod, "cat", stdin=True)
    closed = kubelet.started(pod, "cat")

    wait_until(lambda: kubelet.cri.container_status(closed).state == pb.CONTAINER_EXITED)
    assert kubelet.cri.container_status(reading).state == pb.CONTAINER_RUNNING


# --- users ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "ids"),
    [
        ({}, "0:0"),
        ({"run_as_user": pb.Int64Value(value=1000)}, "1000:1000"),
        ({"run_as_user": pb.Int64Value(value=4321), "run_as_group": pb.Int64Value(value=5432)}, "4321:5432"),
        ({"run_as_username": "www"}, "1000:1000"),
        ({"run_as_username": "www", "run_as_group": pb.Int64Value(value=50)}, "1000:50"),
    ],
    ids=["image", "uid", "uid and gid", "name", "name and gid"],
)
def test_the_user_is_the_one_asked_for(kubelet: Kubelet, pod: Pod, context: dict[str, Any], ids: str) -> None:
    container = kubelet.started(pod, **secured(**context))

    assert inside(kubelet, container, "echo $(id -u):$(id -g)") == ids + "\n"


def test_supplemental_groups_are_added_to_the_images(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    context = {"run_as_username": "www", "supplemental_groups": [7777, 8888]}
    container = kubelet.started(pod, **secured(**context))

    assert set(proc_status(served, container)["Groups"]) >= {"7777", "8888", "44", "50"}


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

    assert "not permitted" in inside(kubelet, container, "mkdir /tmp/x")


@pytest.mark.parametrize("readonly", [True, False])
def test_the_root_file_system_can_be_read_only(kubelet: Kubelet, pod: Pod, readonly: bool) -> None:
    container = kubelet.started(pod, **secured(readonly_rootfs=readonly))

    answer = kubelet.cri.exec(container, "touch", "/new")
    assert (answer.exit_code, b"Read-only" in answer.stderr) == ((1, True) if readonly else (0, False))


def test_paths_are_masked_as_asked_for(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, **secured(masked_paths=["/etc/passwd"], readonly_paths=["/proc/sys"]))

    assert inside(kubelet, container, "cat /etc/passwd") == ""
    assert "Read-only" in inside(kubelet, container, "echo 1 >/proc/sys/kernel/shm_rmid_forced")


# --- mounts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [True, False])
def test_a_directory_of_the_node_is_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "note").write_text("hello")
    mount = pb.Mount(host_path=str(tmp_path), container_path="/data", readonly=readonly)

    container = kubelet.started(pod, mounts=[mount])

    assert inside(kubelet, container, "cat /data/note") == "hello"
    assert kubelet.cri.exec(container, "touch", "/data/new").exit_code == (1 if readonly else 0)
    assert (tmp_path / "new").exists() is not readonly
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


def test_a_missing_host_path_becomes_a_directory(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path / "not/there"), container_path="/data")

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.cri.exec(container, "touch", "/data/x").exit_code == 0
    assert (tmp_path / "not/there/x").exists()


def test_a_link_on_the_node_is_followed(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/note").write_text("behind")
    (tmp_path / "link").symlink_to("real")
    mount = pb.Mount(host_path=str(tmp_path / "link"), container_path="/data")

    assert inside(kubelet, kubelet.started(pod, mounts=[mount]), "cat /data/note") == "behind"


def test_a_single_file_is_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("1.2.3.4 here\n")
    mount = pb.Mount(host_path=str(tmp_path / "hosts"), container_path="/etc/hosts")

    assert inside(kubelet, kubelet.started(pod, mounts=[mount]), "cat /etc/hosts") == "1.2.3.4 here\n"


def mounted(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    (directory / "late").touch()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory whose mounts are shared with containers that want them."""
    directory = tmp_path / "shared"
    directory.mkdir()
    yield directory
    while (
        subprocess.run(["umount", "--recursive", directory / "sub"], check=False, capture_output=True).returncode == 0
    ):
        pass


@pytest.mark.parametrize(
    ("propagation", "seen"),
    [(pb.PROPAGATION_PRIVATE, 1), (pb.PROPAGATION_HOST_TO_CONTAINER, 0), (pb.PROPAGATION_BIDIRECTIONAL, 0)],
    ids=["private", "host to container", "bidirectional"],
)
def test_later_mounts_of_the_node_are_seen_when_asked_for(
    kubelet: Kubelet, pod: Pod, shared: Path, propagation: pb.MountPropagation, seen: int
) -> None:
    mount = pb.Mount(host_path=str(shared), container_path="/data", propagation=propagation)
    container = kubelet.started(pod, mounts=[mount])

    mounted(shared / "sub")

    assert kubelet.cri.exec(container, "ls", "/data/sub/late").exit_code == seen


@pytest.mark.parametrize(
    ("propagation", "seen"),
    [(pb.PROPAGATION_HOST_TO_CONTAINER, False), (pb.PROPAGATION_BIDIRECTIONAL, True)],
    ids=["host to container", "bidirectional"],
)
def test_mounts_of_the_container_are_seen_when_asked_for(
    kubelet: Kubelet, pod: Pod, shared: Path, propagation: pb.MountPropagation, seen: bool
) -> None:
    mount = pb.Mount(host_path=str(shared), container_path="/data", propagation=propagation)
    unconfined = pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)
    mounter = secured(
        capabilities=pb.Capability(add_capabilities=["SYS_ADMIN"]), seccomp=unconfined, apparmor=unconfined
    )
    container = kubelet.started(pod, mounts=[mount], **mounter)

    script = "mkdir /data/sub && mount -t tmpfs tmpfs /data/sub && touch /data/sub/late"
    assert inside(kubelet, container, script) == ""

    assert (shared / "sub/late").exists() is seen


# --- resources --------------------------------------------------------------------------------------------

MIB = 1 << 20
LIMITS = pb.LinuxContainerResources(
    cpu_period=50_000,
    cpu_quota=25_000,
    cpu_shares=512,
    memory_limit_in_bytes=64 * MIB,
    cpuset_cpus="0",
    cpuset_mems="0",
)
V1_FILES = {
    "cpu/cpu.cfs_period_us": "50000",
    "cpu/cpu.cfs_quota_us": "25000",
    "cpu/cpu.shares": "512",
    "cpuset/cpuset.cpus": "0",
    "memory/memory.limit_in_bytes": str(64 * MIB),
}
V2_FILES = {
    "cpu.max": "25000 50000",
    "cpuset.cpus": "0",
    "memory.max": str(64 * MIB),
}


def cgroup_files(served: Served, container: str) -> dict[str, str]:
    """What the kernel has in the files of V1_FILES or V2_FILES for a container."""
    parent = served.engine.cgroup_parent.strip("/")
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        paths = {name: root / parent / container / name for name in V2_FILES}
    else:
        paths = {name: root / name.split("/")[0] / parent / container / name.split("/")[1] for name in V1_FILES}
    return {name: path.read_text().strip() for name, path in paths.items()}


def expected(**changed: str) -> dict[str, str]:
    files = V2_FILES if Path("/sys/fs/cgroup/cgroup.controllers").exists() else V1_FILES
    return files | changed


def test_limits_are_in_the_kernel(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=LIMITS))

    assert cgroup_files(served, container) == expected()
    told = kubelet.cri.container_status(container).resources.linux
    assert (told.cpu_period, told.cpu_quota, told.cpu_shares) == (50_000, 25_000, 512)
    assert (told.memory_limit_in_bytes, told.cpuset_cpus) == (64 * MIB, "0")


def update(cri: Cri, container: str, **fields: Any) -> None:
    linux = pb.LinuxContainerResources(**fields)
    cri.runtime.UpdateContainerResources(pb.UpdateContainerResourcesRequest(container_id=container, linux=linux))


@pytest.mark.parametrize("started", [True, False], ids=["running", "created"])
def test_limits_can_be_changed(kubelet: Kubelet, pod: Pod, served: Served, started: bool) -> None:
    container = kubelet.created(pod)
    if started:
        kubelet.cri.start(container)
    update(kubelet.cri, container, **{field.name: value for field, value in LIMITS.ListFields()})
    if not started:
        kubelet.cri.start(container)

    assert cgroup_files(served, container) == expected()
    assert kubelet.cri.container_status(container).resources.linux.memory_limit_in_bytes == 64 * MIB


def test_what_an_update_leaves_out_stays(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=LIMITS))

    update(kubelet.cri, container, cpu_shares=1024)

    changed = {} if "cpu.max" in expected() else {"cpu/cpu.shares": "1024"}
    assert cgroup_files(served, container) == expected(**changed)


def test_a_memory_limit_below_dockers_least_is_kept(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=4 * MIB)
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=limit))

    files = cgroup_files(served, container)
    assert files.get("memory.max", files.get("memory/memory.limit_in_bytes")) == str(4 * MIB)


def test_what_has_ended_cannot_be_changed(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    kubelet.cri.stop_container(container)

    with pytest.raises(grpc.RpcError) as refusal:
        update(kubelet.cri, container, cpu_shares=1024)

    assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_a_lower_oom_score_than_this_machine_allows_does_not_fail(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(
        pod, linux=pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(oom_score_adj=-997))
    )

    pid = served.engine.api.inspect_container(container)["State"]["Pid"]
    floor = int(Path(f"/proc/{served.engine.daemon.pid}/oom_score_adj").read_text())
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) in {-997, floor}
