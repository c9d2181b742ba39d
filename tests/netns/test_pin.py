"""Pins of real namespaces of real processes."""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from shim.base.gather import gather
from shim.domain.errors import FailedPrecondition, ShimError
from shim.netns.pin import ProcessEnded, ensure_pinned, is_pinned, remove_empty_directory, unpin
from tests.mounts import mounts_on, small_tmpfs
from tests.netns.conftest import Pod


def same_namespace(path: Path, pid: int) -> bool:
    return os.path.samestat(path.stat(), Path(f"/proc/{pid}/ns/net").stat())


def end(pod: Pod) -> None:
    pod.communicate()


def test_the_pin_is_the_namespace_of_the_process_and_survives_it(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    before = Path(f"/proc/{pod.pid}/ns/net").stat()
    ensure_pinned(path, pid=pod.pid)
    assert is_pinned(path)
    end(pod)
    assert is_pinned(path)
    assert os.path.samestat(path.stat(), before)


def test_pinning_twice_mounts_once(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    ensure_pinned(path, pid=pod.pid)
    ensure_pinned(path, pid=pod.pid)
    assert len(mounts_on(path)) == 1


def test_a_file_left_by_a_crash_is_used(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    directory.mkdir()
    path.touch(mode=0)
    assert not is_pinned(path)
    ensure_pinned(path, pid=pod.pid)
    assert same_namespace(path, pod.pid)


def test_a_pin_of_another_namespace_is_an_error_and_stays(directory: Path, start_pod: Callable[[], Pod]) -> None:
    first, second = start_pod(), start_pod()
    path = directory / "cri-1"
    ensure_pinned(path, pid=first.pid)
    with pytest.raises(FailedPrecondition, match=f"{second.pid} on {path}: another namespace is pinned there"):
        ensure_pinned(path, pid=second.pid)
    assert same_namespace(path, first.pid)


def test_the_namespace_of_the_server_is_never_pinned(directory: Path) -> None:
    with pytest.raises(FailedPrecondition, match="it is the namespace this server runs in"):
        ensure_pinned(directory / "cri-1", pid=os.getpid())
    assert not directory.exists()


@pytest.mark.parametrize("pid", [0, -1])
def test_a_container_that_does_not_run_has_no_namespace(directory: Path, pid: int) -> None:
    with pytest.raises(FailedPrecondition, match="the process is not running"):
        ensure_pinned(directory / "cri-1", pid=pid)
    assert not directory.exists()


def test_an_ended_process_is_an_error_that_names_it(directory: Path, pod: Pod) -> None:
    end(pod)
    with pytest.raises(FailedPrecondition, match=f"process {pod.pid} on .*/cri-1: the process has ended"):
        ensure_pinned(directory / "cri-1", pid=pod.pid)
    assert not directory.exists()


def test_a_symbolic_link_is_not_followed(directory: Path, tmp_path: Path, pod: Pod) -> None:
    target = tmp_path / "precious"
    target.touch()
    directory.mkdir()
    (directory / "cri-1").symlink_to(target)
    with pytest.raises(ShimError, match="cri-1: too many levels of symbolic links"):
        ensure_pinned(directory / "cri-1", pid=pod.pid)
    assert mounts_on(target) == []


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path, pod: Pod) -> None:
    with small_tmpfs(tmp_path / "netns") as small:
        small.make_read_only()
        with pytest.raises(ShimError, match=f"{small.path / 'cri-1'}: read-only file system"):
            ensure_pinned(small.path / "cri-1", pid=pod.pid)


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_directory_is_as_ip_netns_makes_it(directory: Path, pod: Pod, umask: int) -> None:
    before = os.umask(umask)
    try:
        ensure_pinned(directory / "cri-1", pid=pod.pid)
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    [mount] = mounts_on(directory)
    assert " shared:" in mount


def test_concurrent_pins_on_one_path_leave_one_pin(directory: Path, pod: Pod) -> None:
    paths = [directory / f"cri-{number}" for number in range(8)]
    gather([partial(ensure_pinned, path, pid=pod.pid) for path in paths])
    assert all(same_namespace(path, pod.pid) for path in paths)
    assert len(mounts_on(directory)) == 1


def lock_waiters(directory: Path) -> list[str]:
    """Return the lines of /proc/locks about waits for a lock on `directory`."""
    inode = f":{directory.stat().st_ino} "
    return [line for line in Path("/proc/locks").read_text().splitlines() if " -> " in line and inode in line]


def test_pinning_waits_for_the_lock_of_ip_netns(directory: Path, pod: Pod) -> None:
    directory.mkdir()
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    pinning = threading.Thread(target=ensure_pinned, args=(directory / "cri-1",), kwargs={"pid": pod.pid})
    pinning.start()
    while not lock_waiters(directory):
        assert pinning.is_alive(), "it did not wait for the lock"
    subprocess.run(["mount", "--bind", "--make-shared", str(directory), str(directory)], check=True)
    os.close(descriptor)
    pinning.join()
    assert len(mounts_on(directory)) == 1
    assert same_namespace(directory / "cri-1", pod.pid)


def test_pins_and_unpins_propagate_to_other_mount_namespaces(directory: Path, start_pod: Callable[[], Pod]) -> None:
    pod = start_pod()
    ensure_pinned(directory / "cri-early", pid=pod.pid)
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        path = directory / "cri-late"
        ensure_pinned(path, pid=pod.pid)
        assert len(mounts_on(path, pid=agent.pid)) == 1
        unpin(path)
        unpin(directory / "cri-early")
        assert mounts_on(path, pid=agent.pid) == []
        assert mounts_on(directory / "cri-early", pid=agent.pid) == []


AS_IP_NETNS_SEES_IT = """
set -e
mount -t tmpfs tmpfs /run
mount --make-{propagation} /run
pins() {{ grep -c nsfs /proc/self/mountinfo || true; }}
before=$(pins)  # pins of other programs on this machine
python() {{ "{python}" -c "from pathlib import Path; from shim.netns.pin import *; $1"; }}
python 'ensure_pinned(Path("/run/netns/cri-1"), pid={pid})'
ip netns exec cri-1 cat /proc/net/dev | grep -c lo:
ip netns add other
ip netns list | sort
python 'unpin(Path("/run/netns/cri-1")); unpin(Path("/run/netns/other"))'
ls /run/netns | wc -l
echo $(($(pins) - before))
"""


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
@pytest.mark.parametrize("propagation", ["private", "shared"])
def test_ip_netns_and_the_server_use_pins_of_each_other(pod: Pod, propagation: str) -> None:
    script = AS_IP_NETNS_SEES_IT.format(python=sys.executable, pid=pod.pid, propagation=propagation)
    ended = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout.split("\n") == ["1", "cri-1", "other", "0", "0", ""]


def not_pins(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/proc/self/ns/net")
    return {
        "missing": tmp_path / "missing",
        "file": tmp_path / "file",
        "directory": tmp_path / "directory",
        "link": tmp_path / "link",
        "below a file": tmp_path / "file" / "cri-1",
    }


@pytest.mark.parametrize("kind", ["missing", "file", "directory", "link", "below a file"])
def test_only_a_mounted_namespace_is_a_pin(tmp_path: Path, kind: str) -> None:
    assert not is_pinned(not_pins(tmp_path)[kind])


def test_unpin_leaves_nothing_and_can_be_repeated(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    ensure_pinned(path, pid=pod.pid)
    unpin(path)
    assert not path.exists()
    assert mounts_on(path) == []
    unpin(path)


def test_unpin_succeeds_while_the_pin_is_open(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    ensure_pinned(path, pid=pod.pid)
    with path.open("rb"):
        unpin(path)
    assert not path.exists()


def test_unpin_removes_stacked_mounts(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    ensure_pinned(path, pid=pod.pid)
    subprocess.run(["mount", "--bind", str(path), str(path)], check=True)
    assert len(mounts_on(path)) > 1
    unpin(path)
    assert mounts_on(path) == []
    assert not path.exists()


def test_concurrent_unpins_succeed(directory: Path, pod: Pod) -> None:
    path = directory / "cri-1"
    for _ in range(20):
        ensure_pinned(path, pid=pod.pid)
        gather([partial(unpin, path)] * 4)
        assert not path.exists()


def test_a_directory_without_pins_is_unmounted_and_removed(directory: Path, pod: Pod) -> None:
    pin = directory / "cri-a"
    ensure_pinned(pin, pid=pod.pid)

    remove_empty_directory(directory)
    assert is_pinned(pin)

    unpin(pin)
    remove_empty_directory(directory)
    remove_empty_directory(directory)
    assert not mounts_on(directory)
    assert not directory.exists()


def test_a_directory_that_somebody_else_has_mounted_stays_mounted(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "theirs") as theirs:
        remove_empty_directory(theirs.path)
        assert mounts_on(theirs.path)


def test_unpin_removes_a_file_without_a_mount(tmp_path: Path) -> None:
    (tmp_path / "cri-1").touch()
    unpin(tmp_path / "cri-1")
    assert not (tmp_path / "cri-1").exists()


def test_unpin_keeps_other_mounts(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "data") as small:
        (small.path / "precious").touch()
        with pytest.raises(ShimError, match=f"unpin the network namespace {small.path}: "):
            unpin(small.path)
        assert (small.path / "precious").exists()


def test_the_namespace_of_another_process_is_not_pinned(directory: Path, pod: Pod) -> None:
    with pytest.raises(ProcessEnded, match="another"):
        ensure_pinned(directory / "cri-1", pid=pod.pid, confirmed=lambda: False)
    assert not directory.exists()
