"""Volumes of all kinds and set-uid programs in pods with user namespaces."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from integration.conftest import Images, Served
from integration.node.images import File, busybox_image, load
from integration.node.isolation import Node
from integration.node.processes import children, command
from integration.pods.kubelet import Kubelet, in_context, pid_of, wait_image, wait_no_image
from integration.pods.user_namespaces import (
    FIRST,
    IMAGE_USER,
    SIZE,
    kubelet_of,
    own_users,
    pod_of,
    started,
    volume,
)
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

GROUP = 3000
LAYERS = 110
TALL = "node.test/tall:1"
STRANGER = 12345
"""A user of the node whose id belongs to no pod."""
AS_USER = {"run_as_user": pb.Int64Value(value=IMAGE_USER)}


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    with kubelet_of(served, images.busybox) as made:
        yield made


@contextmanager
def mounted(directory: Path, *words: str) -> Iterator[Path]:
    """Mount on a new directory while the block runs; `words` are the arguments of mount(8)."""
    directory.mkdir()
    subprocess.run(["mount", *words, directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_volume_belongs_to_the_pods_fsgroup(kubelet: Kubelet, tmp_path: Path) -> None:
    """A kubelet changes the group of volumes to `fsGroup` before it mounts them."""
    os.chown(tmp_path, 0, GROUP)
    tmp_path.chmod(0o2775)
    users = own_users()
    pod = kubelet.pod(**in_context(namespace_options=users, supplemental_groups=[GROUP]))
    member = {**AS_USER, "supplemental_groups": [GROUP]}
    container = started(kubelet, pod, context=member, mounts=[volume(tmp_path)])

    shown = kubelet.inside(container, "id -G; cd /volume && touch new && stat -c %u:%g . new")

    groups, *owners = shown.splitlines()
    assert str(GROUP) in groups.split()
    assert owners == [f"0:{GROUP}", f"{IMAGE_USER}:{GROUP}"]
    new = (tmp_path / "new").stat()
    assert (new.st_uid, new.st_gid) == (IMAGE_USER, GROUP)


def test_subpaths_of_volumes_can_be_mounted(kubelet: Kubelet, tmp_path: Path) -> None:
    """A kubelet first bind-mounts a `subPath` to a path in its directory: a file to a file."""
    whole = tmp_path / "volume"
    (whole / "part").mkdir(parents=True)
    (whole / "part/inside").write_text("inside\n")
    (whole / "file").write_text("file\n")
    (tmp_path / "bound-file").touch()
    subprocess.run(["mount", "--bind", whole / "file", tmp_path / "bound-file"], check=True)
    try:
        with mounted(tmp_path / "bound-part", "--bind", str(whole / "part")) as part:
            mounts = [volume(part, at="/part"), volume(tmp_path / "bound-file", at="/etc/file", readonly=True)]
            container = started(kubelet, pod_of(kubelet), mounts=mounts)
            shown = kubelet.inside(
                container, "cat /part/inside /etc/file; stat -c %u /part /etc/file; echo x > /etc/file; touch /part/new"
            )
            kubelet.remove_all()
    finally:
        subprocess.run(["umount", tmp_path / "bound-file"], check=True)

    assert shown.splitlines()[:4] == ["inside", "file", "0", "0"]
    assert "Read-only file system" in shown
    assert (whole / "part/new").stat().st_uid == 0


def test_a_volume_in_memory_is_shared_and_has_its_size(kubelet: Kubelet, tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", "-t", "tmpfs", "-o", "size=64k,mode=1777", "none") as memory:
        pod = pod_of(kubelet)
        root = started(kubelet, pod, mounts=[volume(memory)])
        user = started(kubelet, pod, mounts=[volume(memory)], context=AS_USER)

        kubelet.inside(user, "echo shared > /volume/file")
        shown = kubelet.inside(
            root, "cat /volume/file; stat -c %u /volume/file; dd if=/dev/zero of=/volume/big bs=1k count=128"
        )
        owner = (memory / "file").stat().st_uid
        kubelet.remove_all()

    assert shown.splitlines()[:2] == ["shared", str(IMAGE_USER)]
    assert "No space left" in shown
    assert owner == IMAGE_USER


def test_projected_files_are_readable_only_by_their_owner_and_change_atomically(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    """A kubelet writes the files to a new directory and moves the link `..data` to it."""

    def project(version: str) -> None:
        directory = tmp_path / f"..{version}"
        directory.mkdir()
        for name, owner in (("token", IMAGE_USER), ("secret", 0)):
            (directory / name).write_text(f"{version}\n")
            (directory / name).chmod(0o400)
            os.chown(directory / name, owner, owner)
        (tmp_path / "..new").symlink_to(directory.name)
        (tmp_path / "..new").rename(tmp_path / "..data")

    tmp_path.chmod(0o755)
    project("one")
    for name in ("token", "secret"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    mount = volume(tmp_path, readonly=True)
    pod = pod_of(kubelet)
    user, root = started(kubelet, pod, context=AS_USER, mounts=[mount]), started(kubelet, pod, mounts=[mount])

    of_user = kubelet.inside(user, "cat /volume/token /volume/secret")
    of_root = kubelet.inside(root, "cat /volume/token /volume/secret; touch /volume/new")
    project("two")

    assert of_user.startswith("one\n")
    assert "Permission denied" in of_user
    assert of_root.startswith("one\none\n")
    assert "Read-only file system" in of_root
    assert kubelet.inside(user, "cat /volume/token") == "two\n"


def test_the_termination_message_reaches_the_node(served: Served, kubelet: Kubelet, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch(mode=0o666)
    log.chmod(0o666)
    mount = volume(log, at="/dev/termination-log")
    script = "echo why > /dev/termination-log; exit 7"
    container = started(kubelet, pod_of(kubelet), "sh", "-c", script, context=AS_USER, mounts=[mount])

    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_EXITED)

    assert served.cri.container_status(container).exit_code == 7
    assert log.read_text() == "why\n"


def test_a_directory_of_an_image_can_be_a_volume(served: Served, kubelet: Kubelet) -> None:
    if served.engine.name in ("20.10", "26"):
        pytest.skip("this engine mounts no images")
    mount = volume(Path(), at="/image", image=pb.ImageSpec(image=kubelet.image), image_sub_path="etc", readonly=True)
    mount.host_path = ""
    container = started(kubelet, pod_of(kubelet), mounts=[mount])

    shown = kubelet.inside(container, "stat -c %u:%g /image/passwd; cmp /image/passwd /etc/passwd; touch /image/new")

    assert shown.splitlines()[0] == "0:0"
    assert "Read-only file system" in shown
    assert "differ" not in shown


@pytest.fixture
def tall(served: Served, node: Node) -> Iterator[str]:
    """An image with so many layers that their names fill the option string of a mount."""
    layers = tuple((File(f"layer{number}", b"%d" % number),) for number in range(LAYERS))
    image = replace(busybox_image(node.busybox, reference=TALL), above=layers)
    load(served.engine.api, image)
    wait_image(served.cri, TALL)
    yield TALL
    served.engine.api.remove_image(TALL)
    wait_no_image(served.cri, TALL)


def test_an_image_may_have_as_many_layers_as_docker_allows(served: Served, kubelet: Kubelet, tall: str) -> None:
    mount = volume(Path(), at="/image", image=pb.ImageSpec(image=tall), readonly=True)
    mount.host_path = ""
    mounts = [] if served.engine.name in ("20.10", "26") else [mount]
    container = started(kubelet, pod_of(kubelet), image=pb.ImageSpec(image=tall), mounts=mounts)

    places = ["/", *("/image/" for _ in mounts)]
    for place in places:
        shown = kubelet.inside(container, f"ls {place} | grep -c layer; stat -c %u {place}layer0")
        assert shown.split() == [str(LAYERS), "0"]
    kubelet.remove_all()


def test_a_later_mount_of_the_node_propagates_into_the_container(kubelet: Kubelet, tmp_path: Path) -> None:
    """`HostToContainer`. The later mount is not id-mapped: the kernel maps only mounts that exist at the start."""
    tmp_path.chmod(0o755)
    mount = volume(tmp_path, propagation=pb.PROPAGATION_HOST_TO_CONTAINER)
    container = started(kubelet, pod_of(kubelet), mounts=[mount])

    with mounted(tmp_path / "later", "-t", "tmpfs", "-o", "mode=755", "none") as later:
        (later / "file").write_text("here\n")
        assert kubelet.inside(container, "cat /volume/later/file") == "here\n"


# Set-uid programs that the root of a pod makes give nobody the node's root.


def with_sleep(directory: Path) -> list[pb.Mount]:
    """Mount the node's sleep and its libraries; busybox would drop set-uid privileges."""
    shutil.copy("/usr/bin/sleep", directory / "sleep")
    paths = {"/tools": directory, "/lib": Path("/lib").resolve(), "/lib64": Path("/lib64").resolve()}
    return [pb.Mount(host_path=str(path), container_path=at, readonly=True) for at, path in paths.items()]


def made_set_uid(path: str) -> str:
    """Return the command by which the root of a pod makes a set-uid program."""
    return f"mkdir -p {Path(path).parent} && cp /tools/sleep {path} && chmod 4755 {path}"


def uid_of_child(served: Served, container: str) -> int:
    """Return the node's effective uid of the set-uid program that the first process of a container has started."""

    def of_program() -> int:
        # The shell's fork has the shell's arguments until it executes the program.
        found = children(pid_of(served, container))
        return next((pid for pid in found if command(pid).split(b"\0")[1:2] == [b"3600"]), 0)

    status = Path(f"/proc/{wait_until(of_program)}/status").read_text()
    return int(next(line.split()[2] for line in status.splitlines() if line.startswith("Uid:")))


@pytest.mark.parametrize("path", ["/own/sleep", "/volume/sleep"], ids=["layer", "volume"])
def test_a_set_uid_program_gives_a_user_only_the_pods_root(
    served: Served, kubelet: Kubelet, tmp_path: Path, path: str
) -> None:
    """Also if the file on disk belongs to the node's root."""
    for name in ("tools", "volume"):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    mounts = [volume(tmp_path / "volume"), *with_sleep(tmp_path / "tools")]
    script = f"until [ -u {path} ]; do sleep 0.1; done; {path} 3600; exit"
    container = started(kubelet, pod_of(kubelet), "sh", "-c", script, context=AS_USER, mounts=mounts)

    api = served.engine.api
    made = api.exec_create(container, ["sh", "-c", made_set_uid(path)], user="0")["Id"]
    api.exec_start(made, detach=True)

    assert uid_of_child(served, container) == FIRST
    assert wait_until(lambda: api.exec_inspect(made)["ExitCode"] is not None)
    assert api.exec_inspect(made)["ExitCode"] == 0


def test_a_set_uid_program_has_no_effect_in_a_pod_without_its_owner(
    served: Served, kubelet: Kubelet, tmp_path: Path
) -> None:
    """The program belongs to the node's root, and the other pod mounts the volume without a mapping."""
    for name in ("tools", "volume"):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    tools = with_sleep(tmp_path / "tools")
    maker = started(kubelet, pod_of(kubelet), mounts=[volume(tmp_path / "volume"), *tools])
    assert kubelet.inside(maker, made_set_uid("/volume/sleep")) == ""
    made = (tmp_path / "volume/sleep").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode)) == (0, 0o4755)
    plain = pb.Mount(host_path=str(tmp_path / "volume"), container_path="/volume")

    script = "/volume/sleep 3600; exit"
    other = pod_of(kubelet, FIRST + SIZE)
    container = started(kubelet, other, "sh", "-c", script, context=AS_USER, mounts=[plain, *tools])

    assert uid_of_child(served, container) == FIRST + SIZE + IMAGE_USER


def test_users_of_the_node_cannot_execute_a_set_uid_program_in_a_writable_layer(
    served: Served, kubelet: Kubelet
) -> None:
    """On disk it belongs to the node's root."""
    container = started(kubelet, pod_of(kubelet))
    kubelet.inside(container, "cp /bin/busybox /mine; chmod 4755 /mine; chmod 777 /")
    data = served.engine.home / "data"
    found = [path for path in data.rglob("mine") if path.is_file()]

    assert 0 in {path.stat().st_uid for path in found if path.stat().st_mode & stat.S_ISUID}
    for path in found:
        above = [parent for parent in path.parents if parent.is_relative_to(data)]
        assert any(not parent.stat().st_mode & 0o001 for parent in above), path
    assert can_execute(Path("/usr/bin/sleep"))
    assert not can_execute(Path(f"/proc/{pid_of(served, container)}/root/mine"))


def can_execute(path: Path) -> bool:
    """Return whether a user of the node can execute a file."""
    words = ["test", "-x", str(path)]
    return subprocess.run(words, user=STRANGER, group=STRANGER, extra_groups=[], check=False).returncode == 0
