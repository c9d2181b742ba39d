"""Directories of the node in containers: `config.mounts` with host paths."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from integration.conftest import Images, Served
from integration.node.mounts import unmount_all
from integration.pods.kubelet import Kubelet, Pod, in_context, refusal, secured, wait_image
from integration.pods.user_namespaces import own_users
from shim.api.v1 import api_pb2 as pb
from shim.dockerd.runc import ORDERED_RUNTIME

Code = grpc.StatusCode
PRIVATE, IN, BOTH = pb.PROPAGATION_PRIVATE, pb.PROPAGATION_HOST_TO_CONTAINER, pb.PROPAGATION_BIDIRECTIONAL
OLD = "20.10"


def bound(path: Path, at: str = "/data", **fields: Any) -> pb.Mount:
    return pb.Mount(host_path=str(path), container_path=at, **fields)


# --- host paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [True, False])
def test_a_directory_of_the_node_is_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "note").write_text("hello")
    mount = bound(tmp_path, readonly=readonly)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.inside(container, "cat /data/note") == "hello"
    assert kubelet.cri.exec(container, "touch", "/data/new").exit_code == (1 if readonly else 0)
    assert (tmp_path / "new").exists() is not readonly
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


def test_a_host_path_is_mounted_whatever_sub_path_is_given_for_an_image(
    kubelet: Kubelet, pod: Pod, tmp_path: Path
) -> None:
    """In a pod with an image volume a kubelet sends each mount's subPath in this field, next to the host path."""
    (tmp_path / "app.conf").write_text("hello")
    mount = bound(tmp_path / "app.conf", "/etc/app.conf", image_sub_path="app.conf", readonly=True)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.inside(container, "cat /etc/app.conf") == "hello"
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


def test_a_missing_host_path_becomes_a_directory(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    container = kubelet.started(pod, mounts=[bound(tmp_path / "not/there")])

    assert kubelet.cri.exec(container, "touch", "/data/x").exit_code == 0
    assert (tmp_path / "not/there/x").exists()


def test_a_host_path_stays_when_docker_refuses_the_container_it_was_made_for(
    kubelet: Kubelet, pod: Pod, tmp_path: Path
) -> None:
    """Another container may have mounted it by then, and a mount does not protect a directory from removal."""
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(cpuset_cpus="8000"))

    refusal(lambda: kubelet.created(pod, mounts=[bound(tmp_path / "not/there")], linux=linux))

    assert (tmp_path / "not/there").is_dir()


def test_links_and_parents_on_the_node_are_followed(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "real/below").mkdir(parents=True)
    (tmp_path / "real/note").write_text("behind")
    (tmp_path / "link").symlink_to("real/below")
    mounts = [bound(tmp_path / "link/..", "/up"), bound(tmp_path / "link/../../link", "/link")]

    container = kubelet.started(pod, mounts=mounts)

    assert kubelet.inside(container, "cat /up/note; ls /link") == "behind"
    assert list(kubelet.cri.container_status(container).mounts) == mounts


def test_a_single_file_is_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("1.2.3.4 here\n")

    container = kubelet.started(pod, mounts=[bound(tmp_path / "hosts", "/etc/hosts")])

    assert kubelet.inside(container, "cat /etc/hosts") == "1.2.3.4 here\n"


def test_a_socket_and_a_pipe_are_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        mounts = [bound(tmp_path / "s", "/run/agent.sock"), bound(tmp_path / "pipe", "/run/pipe")]
        container = kubelet.started(pod, mounts=mounts)

    assert kubelet.cri.exec(container, "test", "-S", "/run/agent.sock", "-a", "-p", "/run/pipe").exit_code == 0


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A directory with paths that cannot be mounted."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "coming.sock")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file/below", "not a directory"),
        ("loop", "too many levels of symbolic links"),
        ("dangling", "where nothing is"),
        ("n" * 256, "file name too long"),
    ],
    ids=["below a file", "loop", "dangling", "too long"],
)
def test_a_host_path_that_cannot_be_mounted_is_refused(
    kubelet: Kubelet, pod: Pod, traps: Path, name: str, reason: str
) -> None:
    before = sorted(traps.rglob("*"))

    code, message = refusal(lambda: kubelet.created(pod, mounts=[bound(traps / "ok"), bound(traps / name, "/x")]))

    assert code == Code.FAILED_PRECONDITION
    assert f"config.mounts[1].host_path {traps / name}: " in message
    assert reason in message
    assert sorted(traps.rglob("*")) == before


# --- container paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("data", "/data"),
        ("/a/../b/./c", "/b/c"),
        ("//double//", "/double"),
        ("/../../up", "/up"),
        ("/dev/shm", "/dev/shm"),
    ],
    ids=["relative", "dots", "slashes", "above the root", "shared memory"],
)
def test_a_container_path_is_cleaned(kubelet: Kubelet, pod: Pod, tmp_path: Path, path: str, seen: str) -> None:
    (tmp_path / "note").write_text("hello")
    mount = bound(tmp_path, path)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.inside(container, f"cat {seen}/note") == "hello"
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


def test_a_mount_on_resolv_conf_replaces_the_pods(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("nameserver 192.0.2.99\n")

    container = kubelet.started(pod, mounts=[bound(tmp_path / "mine", "//etc/./resolv.conf")])

    assert kubelet.inside(container, "cat /etc/resolv.conf") == "nameserver 192.0.2.99\n"


def test_the_last_of_several_mounts_on_one_path_is_visible(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    """As when a device plugin and a volume of the pod mount the same path."""
    for name in ("first", "inner", "last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    (tmp_path / "last" / "inner").mkdir()
    mounts = [
        bound(tmp_path / "first", "/data"),
        bound(tmp_path / "inner", "/data/inner"),
        bound(tmp_path / "last", "/data/"),
    ]

    container = kubelet.started(pod, mounts=mounts)

    assert kubelet.inside(container, "cat /data/name /data/inner/name") == "lastinner"
    assert list(kubelet.cri.container_status(container).mounts) == mounts


BAD: dict[str, tuple[list[pb.Mount], str]] = {
    "root": ([bound(Path("/tmp"), "/x/..")], "config.mounts[0].container_path '/x/..' is the root"),
    "relative host path": ([bound(Path("tmp"))], "config.mounts[0].host_path 'tmp' is not an absolute path"),
    "NUL in host path": ([bound(Path("/tmp\0/etc"))], "config.mounts[0].host_path holds a NUL"),
    "NUL in container path": ([bound(Path("/tmp"), "/x\0y")], "config.mounts[0].container_path holds a NUL"),
    "propagation": (
        [bound(Path("/tmp"), propagation=pb.MountPropagation.ValueType(9))],
        "config.mounts[0].propagation has the unknown value 9",
    ),
}


@pytest.mark.parametrize(("mounts", "message"), BAD.values(), ids=BAD)
def test_a_mount_is_refused_by_the_name_of_the_field(
    kubelet: Kubelet, pod: Pod, mounts: list[pb.Mount], message: str
) -> None:
    code, said = refusal(lambda: kubelet.created(pod, mounts=mounts))

    assert code == Code.INVALID_ARGUMENT
    assert said.startswith(message)


def test_ten_thousand_mounts_are_refused_at_once(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    mounts = [bound(tmp_path / str(number), f"/data/{number}") for number in range(10_000)]
    begun = time.monotonic()

    answer = refusal(lambda: kubelet.created(pod, mounts=mounts))

    assert answer == (Code.INVALID_ARGUMENT, "config.mounts has 10000 entries, at most 1000 are allowed")
    assert time.monotonic() - begun < 60
    assert not list(tmp_path.iterdir())


def test_hundreds_of_mounts_work(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    mounts = [bound(tmp_path / str(number), f"/data/{number}") for number in range(1000)]

    container = kubelet.started(pod, mounts=mounts)

    assert kubelet.inside(container, "grep -c ' /data/' /proc/mounts") == "1000\n"
    assert list(kubelet.cri.container_status(container).mounts) == mounts


@pytest.mark.parametrize("field", ["uidMappings", "gidMappings"])
def test_id_mapped_mounts_need_a_user_namespace(kubelet: Kubelet, pod: Pod, tmp_path: Path, field: str) -> None:
    mount = bound(tmp_path)
    getattr(mount, field).add(host_id=100000, container_id=0, length=65536)

    code, message = refusal(lambda: kubelet.created(pod, mounts=[mount]))

    assert code == Code.INVALID_ARGUMENT
    assert message.startswith("config.mounts[0].uidMappings and gidMappings")


def test_relabelling_is_accepted_where_selinux_is_off(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    """As on every runtime; with SELinux, see the unit tests of `shim.hostfs.relabel`."""
    if Path("/sys/fs/selinux/enforce").exists():
        pytest.skip("SELinux is on")
    mount = bound(tmp_path, selinux_relabel=True)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.cri.exec(container, "touch", "/data/x").exit_code == 0
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


# --- read-only --------------------------------------------------------------------------------------------


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[Path]:
    """A directory with a file system mounted below it."""
    (tmp_path / "sub").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "sub"], check=True)
    yield tmp_path
    unmount_all(tmp_path / "sub")


def written(kubelet: Kubelet, container: str) -> tuple[str, str]:
    """Return the outcome of a write to /data and of a write to the mount below it."""
    return kubelet.inside(container, "touch /data/x"), kubelet.inside(container, "touch /data/sub/x")


def test_read_only_leaves_mounts_below_writable(kubelet: Kubelet, pod: Pod, nested: Path) -> None:
    container = kubelet.started(pod, mounts=[bound(nested, readonly=True)])

    assert written(kubelet, container) == ("touch: /data/x: Read-only file system\n", "")


def test_recursive_read_only_makes_mounts_below_read_only(
    kubelet: Kubelet, pod: Pod, nested: Path, served: Served
) -> None:
    mount = bound(nested, readonly=True, recursive_read_only=True)
    if served.engine.name == OLD:
        code, message = refusal(lambda: kubelet.created(pod, mounts=[mount]))
        assert code == Code.FAILED_PRECONDITION
        assert message.startswith("RROUnsupported: config.mounts[0].recursive_read_only: needs Docker Engine 25.0")
        return

    container = kubelet.started(pod, mounts=[mount])

    assert written(kubelet, container) == (
        "touch: /data/x: Read-only file system\n",
        "touch: /data/sub/x: Read-only file system\n",
    )
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


@pytest.mark.parametrize(
    "fields",
    [{}, {"readonly": True, "propagation": IN}, {"readonly": True, "propagation": BOTH}],
    ids=["writable", "host to container", "bidirectional"],
)
def test_recursive_read_only_needs_read_only_and_private_propagation(
    kubelet: Kubelet, pod: Pod, tmp_path: Path, fields: dict[str, Any]
) -> None:
    mount = bound(tmp_path, recursive_read_only=True, **fields)

    code, message = refusal(lambda: kubelet.created(pod, mounts=[mount]))

    assert code == Code.INVALID_ARGUMENT
    assert message.startswith("config.mounts[0].recursive_read_only needs readonly and private propagation")


def test_handlers_advertise_the_mount_features_that_docker_reports(kubelet: Kubelet, served: Served) -> None:
    handlers = kubelet.cri.runtime.Status(pb.StatusRequest()).runtime_handlers
    reported = {handler.name: handler.features.recursive_read_only_mounts for handler in handlers}

    info = served.engine.api.info()
    features = {
        name: msgspec.json.decode(
            (runtime.get("status") or {}).get("org.opencontainers.runtime-spec.features", "{}")
        ).get("mountOptions", ())
        for name, runtime in info["Runtimes"].items()
        if name != ORDERED_RUNTIME
    }
    expected = {name: "rro" in options for name, options in features.items()}
    assert reported == {"": expected[info["DefaultRuntime"]], **expected}
    assert reported["runc"] is (served.engine.name != OLD)


# --- options ----------------------------------------------------------------------------------------------


def options_in(kubelet: Kubelet, container: str, at: str) -> set[str]:
    """Return the options of a mount, as the container sees them."""
    lines = kubelet.inside(container, "cat /proc/self/mounts").splitlines()
    [found] = [line.split()[3] for line in lines if line.split()[1] == at]
    return set(found.split(","))


@pytest.mark.parametrize("users", [False, True], ids=["plain", "user namespace"])
def test_mounts_have_the_options_that_were_asked_for(kubelet: Kubelet, tmp_path: Path, *, users: bool) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\necho ran\n")
    for path in (tmp_path, tmp_path / "run"):
        path.chmod(0o755)
    namespaces = own_users() if users else pb.NamespaceOption()
    pod = kubelet.pod(**in_context(namespace_options=namespaces))
    wanted = {"noexec", "nodev", "nosuid"}
    asked = [
        bound(tmp_path, "/closed", mount_options=sorted(wanted)),
        bound(tmp_path, "/quiet", mount_options=["noexec"], readonly=True),
        bound(tmp_path, "/open"),
    ]
    container = kubelet.started(pod, mounts=asked, **secured(namespace_options=namespaces))

    assert options_in(kubelet, container, "/closed") & {*wanted, "ro"} == wanted
    assert options_in(kubelet, container, "/quiet") >= {"noexec", "ro"}
    assert not options_in(kubelet, container, "/open") & wanted
    assert kubelet.inside(container, "/open/run") == "ran\n"
    denied = kubelet.cri.exec(container, "sh", "-c", "/closed/run")
    assert (denied.exit_code, b"Permission denied" in denied.stderr) == (126, True)
    assert list(kubelet.cri.container_status(container).mounts) == asked
    assert kubelet.cri.runtime.Status(pb.StatusRequest()).features.mount_options


# --- propagation ------------------------------------------------------------------------------------------


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
    unmount_all(directory / "sub")


@pytest.mark.parametrize(
    ("propagation", "seen"), [(PRIVATE, 1), (IN, 0), (BOTH, 0)], ids=["private", "host to container", "bidirectional"]
)
def test_later_mounts_of_the_node_are_seen_when_asked_for(
    kubelet: Kubelet, pod: Pod, shared: Path, propagation: pb.MountPropagation, seen: int
) -> None:
    mount = bound(shared, propagation=propagation)
    container = kubelet.started(pod, mounts=[mount])

    mounted(shared / "sub")

    assert kubelet.cri.exec(container, "ls", "/data/sub/late").exit_code == seen
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


@pytest.mark.parametrize(
    ("propagation", "seen"),
    [(PRIVATE, False), (IN, False), (BOTH, True)],
    ids=["private", "host to container", "bidirectional"],
)
def test_mounts_of_the_container_are_seen_when_asked_for(
    kubelet: Kubelet, pod: Pod, shared: Path, propagation: pb.MountPropagation, seen: bool
) -> None:
    unconfined = pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)
    mounter = secured(
        capabilities=pb.Capability(add_capabilities=["SYS_ADMIN"]), seccomp=unconfined, apparmor=unconfined
    )
    container = kubelet.started(pod, mounts=[bound(shared, propagation=propagation)], **mounter)

    script = "mkdir /data/sub && mount -t tmpfs tmpfs /data/sub && touch /data/sub/late"
    assert kubelet.inside(container, script) == ""

    assert (shared / "sub/late").exists() is seen


@pytest.fixture
def points(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Three mount points: private, shared, and a slave of the shared mount."""
    found = {kind: tmp_path / kind for kind in ("private", "shared", "slave")}
    for kind, point in found.items():
        point.mkdir()
        source = ("--bind", found["shared"]) if kind == "slave" else ("-t", "tmpfs", "tmpfs")
        subprocess.run(["mount", *source, point], check=True)
        subprocess.run(["mount", f"--make-{kind}", point], check=True)
    yield found
    for point in found.values():
        unmount_all(point)


@pytest.mark.parametrize(
    ("kind", "propagation", "lacks"),
    [("private", IN, "shared or slave"), ("private", BOTH, "shared"), ("slave", BOTH, "shared")],
)
def test_a_mount_that_cannot_propagate_is_refused_with_the_remedy(
    kubelet: Kubelet, pod: Pod, points: dict[str, Path], kind: str, propagation: pb.MountPropagation, lacks: str
) -> None:
    point = points[kind]

    code, message = refusal(lambda: kubelet.created(pod, mounts=[bound(point / "volume", propagation=propagation)]))

    assert code == Code.FAILED_PRECONDITION
    assert message.startswith(f"config.mounts[0].propagation {pb.MountPropagation.Name(propagation)}: {point}/volume ")
    assert f"the mount {point}, which is not {lacks}; `mount --make-rshared {point}`" in message

    subprocess.run(["mount", "--make-rshared", point], check=True)
    kubelet.started(pod, mounts=[bound(point / "volume", propagation=propagation)])


def test_a_slave_of_the_node_gets_its_mounts(kubelet: Kubelet, pod: Pod, points: dict[str, Path]) -> None:
    container = kubelet.started(pod, mounts=[bound(points["slave"], propagation=IN)])

    mounted(points["shared"] / "sub")

    assert kubelet.cri.exec(container, "ls", "/data/sub/late").exit_code == 0


def test_private_propagation_works_on_every_mount_point(kubelet: Kubelet, pod: Pod, points: dict[str, Path]) -> None:
    kubelet.started(pod, mounts=[bound(points["private"])])


def test_a_directory_above_dockers_data_can_be_mounted(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    """Docker refuses to mount it with an explicit `rprivate`."""
    container = kubelet.started(pod, mounts=[bound(served.engine.home, readonly=True)])

    assert "daemon.json" in kubelet.inside(container, "ls /data")


# --- status -----------------------------------------------------------------------------------------------


def test_the_status_repeats_the_requested_mounts_also_after_a_restart(
    kubelet: Kubelet, pod: Pod, served: Served, tmp_path: Path
) -> None:
    mounts = [
        bound(tmp_path / "plain", "relative/../plain"),
        bound(tmp_path / "read-only", "/read-only", readonly=True),
        bound(tmp_path / "in", "/in", propagation=IN),
        bound(tmp_path / "both", "/both", propagation=BOTH, selinux_relabel=True),
    ]
    if served.engine.name != OLD:
        mounts.append(bound(tmp_path / "recursive", "/recursive", readonly=True, recursive_read_only=True))
    container = kubelet.started(pod, mounts=mounts)
    assert list(kubelet.cri.container_status(container).mounts) == mounts

    served.server.kill()
    served.restart()

    assert list(kubelet.cri.container_status(container).mounts) == mounts


def test_volumes_of_the_image_are_not_reported_and_are_removed_with_the_container(
    kubelet: Kubelet, pod: Pod, served: Served, images: Images
) -> None:
    def volumes() -> set[str]:
        return {volume["Name"] for volume in served.engine.api.volumes()["Volumes"] or ()}

    reference = "node.test/volumes:1"
    images.load(reference, {"Volumes": {"/own": {}, "/var/www": {}}})
    wait_image(kubelet.cri, reference)
    before = volumes()
    container = kubelet.started(pod, image=reference)

    assert kubelet.inside(container, "touch /own/x && grep -c -e ' /own ' -e ' /var/www ' /proc/mounts") == "2\n"
    assert kubelet.inside(container, "cat /var/www/index.html") == "it works\n"
    assert not kubelet.cri.container_status(container).mounts
    assert len(volumes() - before) == 2

    kubelet.cri.remove_container(container)
    assert volumes() == before
    served.engine.api.remove_image(reference, force=True)
