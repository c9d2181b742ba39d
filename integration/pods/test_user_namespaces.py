"""Pods with `hostUsers: false`, each in a separate user namespace."""

import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, in_context, pid_of, proc_status, refusal, secured, unused_name
from integration.pods.user_namespaces import (
    FIRST,
    IMAGE_USER,
    SIZE,
    kubelet_of,
    mapping,
    mounts_of_host,
    own_users,
    pod_of,
    started,
    volume,
)
from integration.stats.queries import pod_stats, stats
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

Code = grpc.StatusCode


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    with kubelet_of(served, images.busybox) as made:
        yield made


def owner_of_namespace(path: Path) -> int:
    """Return the inode of the user namespace that owns a namespace (ioctl_ns(2), NS_GET_USERNS)."""
    with path.open("rb") as namespace:
        owner = fcntl.ioctl(namespace, 0xB701)
    try:
        return os.fstat(owner).st_ino
    finally:
        os.close(owner)


def has_lines(log: Path, count: int) -> bool:
    return len(log.read_text().splitlines()) == count


def test_a_pods_user_namespace_owns_its_other_namespaces(served: Served, kubelet: Kubelet) -> None:
    pod = pod_of(kubelet)
    container = started(kubelet, pod)

    pid, pause = pid_of(served, container), pid_of(served, pod.id)
    maps = kubelet.inside(container, "cat /proc/self/uid_map /proc/self/gid_map")
    assert maps.split() == ["0", str(FIRST), str(SIZE)] * 2
    users = Path(f"/proc/{pause}/ns/user").stat().st_ino
    assert Path(f"/proc/{pid}/ns/user").stat().st_ino == users != Path("/proc/self/ns/user").stat().st_ino
    owned = ("net", "ipc", "uts", "pid", "mnt")
    assert {owner_of_namespace(Path(f"/proc/{pid}/ns/{name}")) for name in owned} == {users}
    assert proc_status(served, container)["Uid"] == [str(FIRST)] * 4


def test_two_pods_have_the_requested_id_ranges(kubelet: Kubelet) -> None:
    one, other = pod_of(kubelet), pod_of(kubelet, FIRST + SIZE)

    ranges = [kubelet.inside(started(kubelet, pod), "cat /proc/self/uid_map").split()[1] for pod in (one, other)]

    assert ranges == [str(FIRST), str(FIRST + SIZE)]


def test_files_of_the_image_and_of_volumes_keep_their_owners(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "of-root").touch()
    (tmp_path / "of-user").touch()
    os.chown(tmp_path / "of-user", IMAGE_USER, IMAGE_USER)
    container = started(kubelet, pod_of(kubelet), mounts=[volume(tmp_path)])

    shown = kubelet.inside(container, "cd /volume; touch new; stat -c '%n %u:%g' /bin /etc/passwd of-root of-user new")

    assert shown.splitlines() == ["/bin 0:0", "/etc/passwd 0:0", "of-root 0:0", "of-user 1000:1000", "new 0:0"]
    assert (tmp_path / "new").stat().st_uid == 0


@pytest.mark.parametrize("place", ["elsewhere", "below Docker's data"])
def test_a_mount_without_mappings_keeps_the_hosts_ids(
    served: Served, kubelet: Kubelet, tmp_path: Path, place: str
) -> None:
    path = tmp_path if place == "elsewhere" else served.engine.home / "data" / unused_name("plain")
    path.mkdir(exist_ok=True)
    (path / "of-root").touch()
    (path / "of-pod").touch()
    os.chown(path / "of-pod", FIRST, FIRST)
    path.chmod(0o755)
    plain = pb.Mount(host_path=str(path), container_path="/volume")
    container = started(kubelet, pod_of(kubelet), mounts=[plain])

    assert kubelet.inside(container, "stat -c %u /volume/of-root /volume/of-pod").split() == ["65534", "0"]


def test_a_container_with_all_capabilities_cannot_read_files_of_the_hosts_root(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host\n")
    secret.chmod(0o600)
    tmp_path.chmod(0o755)
    plain = pb.Mount(host_path=str(tmp_path), container_path="/volume")
    everything = {"capabilities": pb.Capability(add_capabilities=["ALL"])}
    container = started(kubelet, pod_of(kubelet), context=everything, mounts=[plain])

    assert "Permission denied" in kubelet.inside(container, "cat /volume/secret; chmod 666 /volume/secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_the_root_file_system_can_be_read_only(kubelet: Kubelet) -> None:
    container = started(kubelet, pod_of(kubelet), context={"readonly_rootfs": True})

    assert "Read-only file system" in kubelet.inside(container, "touch /new")
    assert kubelet.inside(container, "echo x > /dev/shm/new && stat -c %u /bin /dev/shm/new").split() == ["0", "0"]


def test_output_to_dev_stdout_reaches_the_log(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod(log_directory=str(served.dirs.logs), **in_context(namespace_options=own_users()))
    script = "echo plain; echo opened > /dev/stdout; echo error > /dev/stderr; sleep 3600"
    for user in (0, IMAGE_USER):
        log = served.dirs.logs / f"{user}.log"
        identity = {"run_as_user": pb.Int64Value(value=user)}
        started(kubelet, pod, "sh", "-c", script, log_path=log.name, context=identity)
        wait_until(partial(has_lines, log, 3))
        assert {line.rpartition(" ")[2] for line in log.read_text().splitlines()} == {"plain", "opened", "error"}


def test_exec_runs_as_the_pods_root_or_the_containers_user(kubelet: Kubelet) -> None:
    pod = pod_of(kubelet)
    root = started(kubelet, pod)
    user = started(kubelet, pod, context={"run_as_user": pb.Int64Value(value=IMAGE_USER)})

    assert kubelet.inside(root, "id -u; echo opened > /dev/stdout") == "0\nopened\n"
    assert kubelet.inside(user, "id -u; echo opened > /dev/stdout") == "1000\nopened\n"


def test_containers_share_ipc_and_pid_namespaces_as_requested(kubelet: Kubelet) -> None:
    options = own_users()
    options.pid = pb.POD
    pod = kubelet.pod(**in_context(namespace_options=options))
    one, other = started(kubelet, pod), started(kubelet, pod)

    kubelet.inside(one, "echo shared > /dev/shm/file")

    assert kubelet.inside(other, "cat /dev/shm/file; cat /proc/1/comm").split() == ["shared", "pause"]


def test_root_of_the_pod_binds_low_ports_pings_and_mounts_sysctls(kubelet: Kubelet) -> None:
    pod = kubelet.pod(
        linux=pb.LinuxPodSandboxConfig(
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=own_users()),
            sysctls={"net.ipv4.ip_local_port_range": "1024 1100", "kernel.shm_rmid_forced": "1"},
        )
    )
    container = started(kubelet, pod)

    sysctls = "/proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced"
    shown = kubelet.inside(container, f"cat {sysctls}; nc -l -p 80 -w 1 </dev/null; ping -c1 -W2 127.0.0.1")

    assert shown.split()[:3] == ["1024", "1100", "1"]
    assert "1 packets received" in shown
    assert "denied" not in shown


def test_unmasked_proc_hides_nothing(kubelet: Kubelet) -> None:
    options = own_users()
    pod = kubelet.pod(**in_context(namespace_options=options))
    unmasked = pb.LinuxContainerSecurityContext(namespace_options=options)
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(security_context=unmasked))

    assert kubelet.inside(container, "grep -c ' /proc/' /proc/mounts").strip() == "0"


def test_a_pod_in_a_user_namespace_can_use_the_host_network(served: Served, kubelet: Kubelet) -> None:
    assert served.cri.runtime.Status(pb.StatusRequest()).features.user_namespaces_host_network
    container = started(kubelet, pod_of(kubelet, network=pb.NODE))

    shown = kubelet.inside(container, "cat /proc/self/uid_map; ls /sys/class/net")

    assert str(FIRST) in shown
    assert {name for _, name in socket.if_nameindex()} <= set(shown.split())


def test_a_container_that_a_user_restarts_has_its_namespace_and_files(served: Served, kubelet: Kubelet) -> None:
    container = started(kubelet, pod_of(kubelet))
    kubelet.inside(container, "touch /mine; chown 1000 /mine")

    served.engine.api.restart(container, timeout=0)

    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_RUNNING)
    assert kubelet.inside(container, "stat -c %u /mine; cat /proc/self/uid_map").split()[:3] == [
        "1000",
        "0",
        str(FIRST),
    ]


@pytest.mark.parametrize("damage", ["missing", "damaged", "newer", "open to others"])
def test_a_container_with_a_damaged_order_does_not_start(served: Served, kubelet: Kubelet, damage: str) -> None:
    pod = pod_of(kubelet)
    container = kubelet.created(pod, **secured(namespace_options=own_users()))
    order = served.engine.home / "oci" / container
    content = order.read_bytes()
    match damage:
        case "missing":
            order.unlink()
        case "damaged":
            order.write_bytes(content.replace(str(FIRST).encode(), b"0" * len(str(FIRST))))
        case "newer":
            order.write_bytes(re.sub(rb"^1 ", b"2 ", content))
        case _:
            order.chmod(0o644)

    code, message = refusal(lambda: served.cri.start(container))

    assert code == Code.UNKNOWN
    assert f"{served.engine.home}/oci/{container}" in message
    assert served.cri.container_status(container).state == pb.CONTAINER_EXITED


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (pb.NamespaceOption(userns_options=pb.UserNamespace(mode=pb.POD)), "userns_options.uids"),
        (
            pb.NamespaceOption(userns_options=pb.UserNamespace(mode=pb.POD, uids=mapping(length=0), gids=mapping())),
            "userns_options.uids[0]",
        ),
        (own_users(ipc=pb.NODE), "ipc"),
    ],
)
def test_a_pod_that_cannot_have_a_user_namespace_is_refused(
    kubelet: Kubelet, options: pb.NamespaceOption, field: str
) -> None:
    code, message = refusal(lambda: kubelet.pod(**in_context(namespace_options=options)))

    assert code == Code.INVALID_ARGUMENT
    assert f"config.linux.security_context.namespace_options.{field}" in message


def test_a_container_with_other_mappings_than_its_pod_is_refused(kubelet: Kubelet, tmp_path: Path) -> None:
    pod = pod_of(kubelet)

    other = refusal(lambda: kubelet.created(pod, **secured(namespace_options=own_users(FIRST + SIZE))))
    none = refusal(lambda: kubelet.created(pod))
    mounts = [volume(tmp_path, first=FIRST + SIZE)]
    mount = refusal(lambda: kubelet.created(pod, mounts=mounts, **secured(namespace_options=own_users())))

    assert {code for code, _ in (other, none, mount)} == {Code.INVALID_ARGUMENT}
    assert "must be those of the pod sandbox" in other[1]
    assert "config.mounts[0].uidMappings" in mount[1]


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """An overlay of the node, which cannot be id-mapped."""
    layers, merged = tmp_path / "layers", tmp_path / "merged"
    for path in (merged, *(layers / name for name in ("lower", "upper", "work"))):
        path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", layers], check=True)
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    options = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "none", merged], check=True)
    yield merged
    if merged.is_mount():
        subprocess.run(["umount", merged], check=True)
    subprocess.run(["umount", layers], check=True)


def test_a_failed_start_leaves_no_mount_and_a_later_start_works(
    served: Served, kubelet: Kubelet, overlay: Path
) -> None:
    pod = pod_of(kubelet)
    container = kubelet.created(pod, mounts=[volume(overlay)], **secured(namespace_options=own_users()))
    before = mounts_of_host()

    _, message = refusal(lambda: served.cri.start(container))

    assert "/volume is on an overlay that is no image volume" in message
    assert mounts_of_host() == before
    subprocess.run(["umount", overlay], check=True)
    served.engine.api.start(container)
    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_RUNNING)
    assert kubelet.inside(container, "cat /proc/self/uid_map").split()[1] == str(FIRST)


def test_an_image_volume_has_its_images_owners_and_is_read_only(served: Served, kubelet: Kubelet) -> None:
    if served.engine.name in ("20.10", "26"):
        pytest.skip("this engine mounts no images")
    mount = volume(Path(), at="/image", image=pb.ImageSpec(image=kubelet.image), readonly=True)
    mount.host_path = ""
    container = started(kubelet, pod_of(kubelet), mounts=[mount])

    shown = kubelet.inside(container, "stat -c %u:%g /image/etc/passwd /image/bin; touch /image/new")

    assert shown.split()[:2] == ["0:0", "0:0"]
    assert "Read-only file system" in shown


def test_no_descriptor_of_the_runtime_reaches_a_container(served: Served, kubelet: Kubelet) -> None:
    container = started(kubelet, pod_of(kubelet))

    directory = Path(f"/proc/{pid_of(served, container)}")
    assert {path.name for path in (directory / "fd").iterdir()} == {"0", "1", "2"}
    assert (directory / "cwd").readlink() == Path("/")
    in_exec = kubelet.inside(container, "readlink /proc/$$/cwd; for fd in /proc/$$/fd/*; do readlink $fd; done")
    assert {line.partition(":")[0] for line in in_exec.splitlines()} == {"/", "pipe", "/dev/null"}


def test_a_fifo_and_a_socket_of_the_node_can_be_mounted(kubelet: Kubelet, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        mounts = [volume(tmp_path / name, at=f"/{name}") for name in ("fifo", "socket")]
        container = started(kubelet, pod_of(kubelet), mounts=mounts)

        shown = kubelet.inside(container, "stat -c '%F %u' /fifo /socket").splitlines()

    assert shown == ["fifo 0", "socket 0"]


def test_a_privileged_container_has_no_power_over_the_node(served: Served, kubelet: Kubelet) -> None:
    options = own_users()
    pod = kubelet.pod(**in_context(namespace_options=options, privileged=True))
    container = started(kubelet, pod, context={"privileged": True})

    pid = pid_of(served, container)
    assert Path(f"/proc/{pid}/ns/user").stat().st_ino != Path("/proc/self/ns/user").stat().st_ino
    script = (
        "echo 1 > /proc/sys/vm/drop_caches; mknod /disk b 7 0; mkdir /new; mount -t proc none /new && echo mounted; "
        "echo x > /proc/sysrq-trigger; mkdir /sys/fs/cgroup/memory/breakout"
    )
    shown = kubelet.inside(container, script).splitlines()
    assert len([line for line in shown if re.search("denied|not permitted|nonexistent|No such|Read-only", line)]) == 4
    assert [line for line in shown if line == "mounted"] == ["mounted"]


def test_a_privileged_container_cannot_open_devices_of_the_nodes_root(kubelet: Kubelet) -> None:
    """Kubernetes and containerd accept `privileged` with `hostUsers: false` too."""
    device = next(path for path in Path("/dev").glob("loop[0-9]*") if not path.stat().st_mode & 0o007)
    pod = kubelet.pod(**in_context(namespace_options=own_users(), privileged=True))
    container = started(kubelet, pod, context={"privileged": True})

    shown = kubelet.inside(container, f"stat -c '%F %u' {device}; head -c 1 {device}; echo x > {device}; id -u")

    assert shown.splitlines()[0] == "block special file 65534"
    assert shown.count("Permission denied") == 2


def test_a_container_restarted_after_a_kill_keeps_its_files(served: Served, kubelet: Kubelet) -> None:
    container = started(kubelet, pod_of(kubelet))
    kubelet.inside(container, "touch /mine; chown 1000 /mine")
    before = mounts_of_host()
    os.kill(pid_of(served, container), signal.SIGKILL)
    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_EXITED)

    served.engine.api.start(container)

    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_RUNNING)
    assert kubelet.inside(container, "stat -c %u /mine; cat /proc/self/uid_map").split()[:3] == [
        "1000",
        "0",
        str(FIRST),
    ]
    assert mounts_of_host() == before


def test_a_pod_with_a_killed_containerd_shim_leaves_no_mount(served: Served, kubelet: Kubelet) -> None:
    before = mounts_of_host()
    pod = pod_of(kubelet)
    container = started(kubelet, pod)
    pause = pid_of(served, pod.id)
    shim = int(Path(f"/proc/{pause}/stat").read_text().rpartition(")")[2].split()[1])
    assert Path(f"/proc/{shim}/comm").read_text().startswith("containerd-shim")

    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: served.engine.api.inspect_container(pod.id)["State"]["Status"] == "exited")

    served.cri.remove_container(container)
    served.cri.remove(pod.id)
    assert mounts_of_host() == before


def test_statistics_count_the_pods_processes(served: Served, kubelet: Kubelet) -> None:
    pod = pod_of(kubelet)
    container = started(kubelet, pod, "sh", "-c", "x=$(head -c 9000000 /dev/zero | tr '\\0' x); sleep 3600; exit")

    wait_until(lambda: stats(served, container).memory.usage_bytes.value > 9_000_000)

    of_container, of_pod = stats(served, container), pod_stats(served, pod).linux
    assert of_container.cpu.usage_core_nano_seconds.value > 0
    assert of_container.writable_layer.inodes_used.value > 0
    assert of_pod.network.default_interface.name == "eth0"
    assert [each.attributes.id for each in of_pod.containers] == [container]
    assert wait_until(lambda: pod_stats(served, pod).linux.process.process_count.value == 3)


def test_a_memory_kill_in_a_user_namespace_is_reported(served: Served, kubelet: Kubelet) -> None:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=16 << 20)
    context = pb.LinuxContainerSecurityContext(namespace_options=own_users())
    hog = 'x=$(head -c 65000000 /dev/zero | tr "\\0" x); exit 0'
    linux = pb.LinuxContainerConfig(resources=limit, security_context=context)
    container = kubelet.started(pod_of(kubelet), "sh", "-c", hog, linux=linux)

    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_EXITED)

    status = served.cri.container_status(container)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


def test_limits_of_a_running_container_can_change(served: Served, kubelet: Kubelet) -> None:
    container = started(kubelet, pod_of(kubelet))
    resources = pb.LinuxContainerResources(memory_limit_in_bytes=64 << 20, memory_swap_limit_in_bytes=64 << 20)

    update = pb.UpdateContainerResourcesRequest(container_id=container, linux=resources)
    served.cri.runtime.UpdateContainerResources(update)

    limits = served.cri.container_status(container).resources.linux
    assert limits.memory_limit_in_bytes == 64 << 20
    assert kubelet.inside(container, "cat /proc/self/uid_map").split()[1] == str(FIRST)
