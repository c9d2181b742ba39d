import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shim.base.process import ProcessHandle
from shim.dockerd import runc_files
from shim.dockerd.starting_tasks import state_file
from shim.own_exec import container as module
from shim.own_exec.container import Container, Unsuited, check_same_rights, namespaces_of, read_container
from tests.waits import wait_until

ID = "0123456789abcdef"
CONFIG: dict[str, Any] = {
    "process": {
        "user": {"uid": 1000, "gid": 77, "additionalGids": [5]},
        "args": ["sleep"],
        "env": ["PATH=/bin", "HOSTNAME=h"],
        "cwd": "/work",
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"], "permitted": ["CAP_CHOWN"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": (1 << 64) - 1}],
        "oomScoreAdj": 7,
    },
    "linux": {"namespaces": [{"type": "pid"}], "seccomp": {"defaultAction": "SCMP_ACT_ALLOW"}},
}


@pytest.fixture
def pid(tmp_path: Path) -> Iterator[int]:
    """A process whose parent has the name of containerd-shim."""
    shim = tmp_path / "containerd-shim"
    shim.symlink_to("/bin/sh")
    command = [str(shim), "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]}) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        yield first
        with suppress(ProcessLookupError):
            os.kill(first, 9)


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, pid: int, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Write the files of a container below a directory, and return the directory."""
    monkeypatch.setattr(module, "_SECURITY_MODULES", tmp_path / "lsm")
    (tmp_path / "lsm").write_text("lockdown,capability,landlock,yama,apparmor,tomoyo,bpf")

    def write(config: dict[str, Any] = CONFIG, *, runtime: str = "/usr/sbin/runc", **state: Any) -> Path:
        bundle = tmp_path / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(config))
        (bundle / "runtime").write_text(runtime)
        root = tmp_path / "exec-root"
        file = state_file(root, ID)
        file.parent.mkdir(parents=True, exist_ok=True)
        began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        whole = {
            "init_process_pid": pid,
            "init_process_start": began,
            "cgroup_paths": {"": str(tmp_path)},
            "config": {"labels": ["x=y", f"bundle={bundle}"]},
        }
        file.write_text(json.dumps(whole | state))
        return root

    return write


def changed(**fields: Any) -> dict[str, Any]:
    return {**CONFIG, "process": {**CONFIG["process"], **fields}}


def changed_linux(**fields: Any) -> dict[str, Any]:
    return {**CONFIG, "linux": {**CONFIG["linux"], **fields}}


def read(root: Path, pid: int) -> Container:
    return read_container(ID, exec_root=root, pid=pid)


def test_attributes_come_from_the_files_of_runc(make: Make, pid: int) -> None:
    found = read(make(), pid)
    assert (found.process.user.uid, found.process.user.gid, found.process.user.additional_gids) == (1000, 77, [5])
    assert found.capabilities("bounding") == 1 << 0 | 1 << 21
    assert found.capabilities("permitted") == 1
    assert found.capabilities("ambient") == 0
    assert found.limits[7] == (10, -1)
    assert found.umask == 0o022
    assert found.runc == Path("/usr/sbin/runc")
    assert json.loads(found.seccomp) == {"defaultAction": "SCMP_ACT_ALLOW"}
    assert found.is_alive()


def test_inherited_attributes_come_from_containerd_shim(make: Make, pid: int) -> None:
    os.setpriority(os.PRIO_PROCESS, _parent(pid), 5)
    found = read(make(), pid)
    assert found.niceness == 5
    assert found.processors == os.sched_getaffinity(0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("config", "reason", "text"),
    [
        (changed(scheduler={"policy": "SCHED_FIFO"}), "field", "config.json has scheduler"),
        (changed(rlimits=[{"type": "RLIMIT_NEW", "soft": 1, "hard": 1}]), "field", "limit RLIMIT_NEW"),
        (changed(user={"uid": 0, "gid": 0, "new": 1}), "field", "config.json has new"),
        (changed_linux(personality={"domain": "LINUX32"}), "field", "config.json has personality"),
        (changed_linux(namespaces=[{"type": "time"}]), "field", "namespace time"),
        (changed(cwd=7), "state", "decode the files of runc"),
        ({"process": CONFIG["process"]}, "state", "decode the files of runc"),
    ],
)
def test_unknown_fields_are_left_to_docker(
    make: Make, pid: int, config: dict[str, Any], reason: str, text: str
) -> None:
    with pytest.raises(Unsuited, match=text) as unsuited:
        read(make(config), pid)
    assert unsuited.value.reason == reason


@pytest.mark.parametrize("runtime", ["crun", "/usr/bin/kata-runtime"])
def test_another_runtime_is_left_to_docker(make: Make, pid: int, runtime: str) -> None:
    with pytest.raises(Unsuited, match=runtime):
        read(make(runtime=runtime), pid)


@pytest.mark.parametrize("runtime", ["runc", "/usr/libexec/oci-runtime", "/runtimes/pydockershim.-A="])
def test_runc_is_found_in_the_path_of_containerd_shim(
    make: Make, pid: int, tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runc = tmp_path / "bin/runc"
    runc.parent.mkdir()
    runc.touch(mode=0o755)
    environ = f"A=b\0PATH={runc.parent}\0".encode()
    whole = runc_files.read_file
    monkeypatch.setattr(runc_files, "read_file", lambda path: environ if path.name == "environ" else whole(path))
    assert read(make(runtime=runtime), pid).runc == runc


def test_a_state_of_another_process_is_left_to_docker(make: Make, pid: int) -> None:
    with pytest.raises(Unsuited, match="runc has process"):
        read(make(init_process_start=1), pid)
    with pytest.raises(Unsuited, match="runc has process"):
        read(make(init_process_pid=1), pid)


def test_a_container_without_files_is_left_to_docker(tmp_path: Path, pid: int) -> None:
    with pytest.raises(Unsuited, match="no such file"):
        read(tmp_path, pid)


def test_a_first_process_of_another_parent_is_left_to_docker(make: Make, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        began = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        root = make(init_process_pid=process.pid, init_process_start=began)
        try:
            with pytest.raises(Unsuited, match="is not a containerd-shim"):
                read(root, process.pid)
        finally:
            process.kill()


def test_a_kernel_whose_modules_label_processes_is_left_to_docker(make: Make, pid: int, tmp_path: Path) -> None:
    root = make()
    (tmp_path / "lsm").write_text("capability,smack")
    with pytest.raises(Unsuited, match="the kernel has smack"):
        read(root, pid)


@pytest.mark.parametrize(("file", "word"), [("cgroup.freeze", "1"), ("freezer.state", "FROZEN")])
def test_a_frozen_container_is_detected(make: Make, pid: int, tmp_path: Path, file: str, word: str) -> None:
    paths = {"": str(tmp_path)} if file == "cgroup.freeze" else {"freezer": str(tmp_path), "": "/no/such"}
    (tmp_path / file).write_text("0\n" if word == "1" else "THAWED\n")
    found = read(make(cgroup_paths=paths), pid)
    assert not found.is_frozen()
    (tmp_path / file).write_text(word)
    assert found.is_frozen()


def test_an_ended_container_is_detected(make: Make, pid: int) -> None:
    found = read(make(), pid)
    with ProcessHandle(pid) as first:
        os.kill(_parent(pid), 9)
        os.kill(pid, 9)
        assert first.ends_within(10)
    wait_until(lambda: not found.is_alive())


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (b"NoNewPrivs:\t1\nSeccomp:\t0\nCapBnd:\tffffffffffffffff\n", "may not gain privileges"),
        (b"NoNewPrivs:\t0\nSeccomp:\t2\nCapBnd:\tffffffffffffffff\n", "has a seccomp filter"),
        (b"NoNewPrivs:\t0\nSeccomp:\t0\nCapBnd:\t0000000000000001\n", "lacks capabilities that containers may have"),
    ],
)
def test_a_program_with_fewer_rights_than_containers_is_refused(make: Make, pid: int, status: bytes, text: str) -> None:
    found = read(make(), pid)
    with pytest.raises(Unsuited, match=text):
        check_same_rights(found, program=status)


def test_the_current_user_namespace_is_not_entered(pid: int) -> None:
    names = [path.rpartition("/")[2] for path, _ in namespaces_of(pid, has_user_namespace=False)]
    assert names == ["ipc", "uts", "net", "pid", "cgroup", "mnt"]


def test_a_first_process_in_a_user_namespace_it_created_is_left_to_docker() -> None:
    with subprocess.Popen(["unshare", "--user", "sh", "-c", "echo; sleep 600"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert namespaces_of(process.pid, has_user_namespace=True)[-1][1] == 0x10000000
        with pytest.raises(Unsuited, match="left its user namespace"):
            namespaces_of(process.pid, has_user_namespace=False)
        process.kill()
    with pytest.raises(Unsuited, match="left its user namespace"):
        namespaces_of(os.getpid(), has_user_namespace=True)
