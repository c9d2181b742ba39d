"""The facts of a container that a checkpoint needs, read from files of runc and containerd."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shim.criu.checkpoint import read_task
from shim.dockerd import runc_files
from shim.dockerd.starting_tasks import state_file
from shim.domain.errors import FailedPrecondition

ID = "0123456789abcdef"
OVERLAY = b"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n"

Make = Callable[..., Path]


@pytest.fixture
def pid(tmp_path: Path) -> Iterator[int]:
    """Provide a process whose parent has the name of a containerd-shim."""
    shim = tmp_path / "containerd-shim"
    shim.symlink_to("/bin/sh")
    command = [str(shim), "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]}) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        yield first
        with suppress(ProcessLookupError):
            os.kill(first, 9)


@pytest.fixture
def make(tmp_path: Path, pid: int) -> Make:
    """Provide a function that writes the files of a container and returns their directory."""

    def write(
        *, runtime: str = "/usr/sbin/runc", namespaces: tuple[str, ...] = ("pid", "mount"), freeze: str = "0"
    ) -> Path:
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        config: dict[str, Any] = {"linux": {"namespaces": [{"type": each} for each in namespaces]}}
        (bundle / "config.json").write_text(json.dumps(config))
        (bundle / "runtime").write_text(runtime)
        (tmp_path / "cgroup.freeze").write_text(freeze)
        file = state_file(tmp_path / "exec-root", ID)
        file.parent.mkdir(parents=True)
        state = {
            "init_process_pid": pid,
            "init_process_start": runc_files.began(pid),
            "cgroup_paths": {"": str(tmp_path)},
            "config": {"labels": [f"bundle={bundle}"]},
        }
        file.write_text(json.dumps(state))
        return tmp_path / "exec-root"

    return write


@pytest.fixture
def on_overlay(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    whole = Path.read_bytes
    mounts = f"/proc/{pid}/mountinfo"
    monkeypatch.setattr(Path, "read_bytes", lambda path: OVERLAY if str(path) == mounts else whole(path))


@pytest.mark.usefixtures("on_overlay")
def test_the_runc_program_and_its_state_directory_are_found(make: Make, pid: int) -> None:
    root = make()
    task = read_task(ID, exec_root=root, pid=pid)
    assert task.runc == Path("/usr/sbin/runc")
    assert task.state_root == root / "runtime-runc/moby"
    assert task.upper == Path("/u")
    assert task.config["linux"]["namespaces"][0] == {"type": "pid"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"runtime": "/usr/bin/runsc"}, "its OCI runtime is /usr/bin/runsc"),
        ({"namespaces": ("pid", "user")}, "containers in a user namespace are not supported"),
        ({"freeze": "1"}, "it is paused"),
    ],
)
@pytest.mark.usefixtures("on_overlay")
def test_a_container_that_cannot_be_checkpointed_is_refused_with_the_reason(
    make: Make, pid: int, fields: Any, text: str
) -> None:
    with pytest.raises(FailedPrecondition, match=f"checkpoint container {ID}: .*{text}"):
        read_task(ID, exec_root=make(**fields), pid=pid)


def test_a_root_without_overlayfs_is_refused(make: Make, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.read_bytes
    other = OVERLAY.replace(b"overlay", b"btrfs")
    monkeypatch.setattr(Path, "read_bytes", lambda path: other if path.name == "mountinfo" else whole(path))
    with pytest.raises(FailedPrecondition, match="its root is no overlay file system"):
        read_task(ID, exec_root=make(), pid=pid)


def test_another_process_is_refused(make: Make, pid: int) -> None:
    with pytest.raises(FailedPrecondition, match=f"runc has process {pid}, Docker {os.getpid()}"):
        read_task(ID, exec_root=make(), pid=os.getpid())


def test_a_container_of_another_directory_is_refused(tmp_path: Path, pid: int) -> None:
    with pytest.raises(FailedPrecondition, match="no such file"):
        read_task(ID, exec_root=tmp_path, pid=pid)
