"""A checkpoint is a complete archive of a container, which keeps running; a failed checkpoint leaves nothing."""

import io
import json
import os
import re
import stat
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.node.criu import Criu, command_of
from integration.node.isolation import Node
from integration.pods.kubelet import Kubelet, in_context, secured
from integration.pods.test_hardened_nodes import tmpfs
from integration.pods.user_namespaces import own_users
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

# The file is never truncated, so that no reader finds it empty.
COUNTER = "i=0; while :; do i=$((i+1)); echo line $i; echo $i 1<> /state; sleep 0.1; done"


def checkpoint(served: Served, container: str, location: Path | str, *, timeout: int = 0) -> None:
    request = pb.CheckpointContainerRequest(container_id=container, location=str(location), timeout=timeout)
    served.cri.runtime.CheckpointContainer(request)


def refused(served: Served, container: str, location: Path | str, *, timeout: int = 0) -> tuple[grpc.StatusCode, str]:
    """Request a checkpoint, and return code and text of the error."""
    with pytest.raises(grpc.RpcError) as caught:
        checkpoint(served, container, location, timeout=timeout)
    return caught.value.code(), str(caught.value.details())


def started(kubelet: Kubelet, **fields: Any) -> str:
    pod = kubelet.pod()
    made = kubelet.started(pod, "sh", "-c", COUNTER, **fields)
    wait_until(lambda: count(kubelet, made) > 2)
    return made


def count(kubelet: Kubelet, container: str) -> int:
    return int(kubelet.inside(container, "cat /state 2> /dev/null") or 0)


def assert_still_counting(kubelet: Kubelet, container: str) -> None:
    """Check that a container is counting, in the same processes as before."""
    at = count(kubelet, container)
    wait_until(lambda: count(kubelet, container) > at + 2)


def assert_nothing_left(served: Served, directory: Path) -> None:
    assert list(directory.iterdir()) == []
    assert list((served.dirs.state / "checkpointing").glob("*")) == []


def members(location: Path) -> dict[str, bytes]:
    with tarfile.open(location) as archive:
        files = {each.name: archive.extractfile(each) for each in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_an_archive_is_complete_and_its_container_keeps_running(
    served: Served, kubelet: Kubelet, tmp_path: Path
) -> None:
    container = started(kubelet)
    kubelet.inside(
        container, "echo written > /marker; rm /bin/wget; mkdir /d; ln /marker /d/linked; ln -s /marker /d/s"
    )
    pid = served.cri.container_status(container)
    checkpoint(served, container, tmp_path / "c.tar")
    assert stat.S_IMODE((tmp_path / "c.tar").stat().st_mode) == 0o600
    assert_still_counting(kubelet, container)
    assert served.cri.container_status(container) == pid
    found = members(tmp_path / "c.tar")
    assert {name for name in found if "/" not in name} == {
        "config.dump",
        "spec.dump",
        "status.dump",
        "rootfs-diff.tar",
        "dump.log",
        "stats-dump",
    }
    images = {name.removeprefix("checkpoint/") for name in found if name.startswith("checkpoint/")}
    assert images >= {"inventory.img", "pages-1.img", "descriptors.json"}
    assert any(name.startswith("core-") for name in images)
    assert json.loads(found["config.dump"])["id"] == container
    assert json.loads(found["spec.dump"])["annotations"]["io.kubernetes.cri.container-name"].startswith("c")
    assert json.loads(found["spec.dump"])["process"]["args"] == ["sh", "-c", COUNTER]
    with tarfile.open(fileobj=io.BytesIO(found["rootfs-diff.tar"])) as layer:
        names = set(layer.getnames())
        assert names >= {"marker", "state", "d", "d/linked", "d/s", "bin/.wh.wget"}
        assert layer.extractfile("d/linked").read() == b"written\n"  # type: ignore[union-attr] # it is a file
    (tmp_path / "c.tar").unlink()
    assert_nothing_left(served, tmp_path)


def test_a_container_is_checkpointed_where_files_may_not_be_executed(
    served: Served, kubelet: Kubelet, tmp_path: Path
) -> None:
    container = started(kubelet)
    with tmpfs(served.dirs.state / "checkpointing", "noexec,nosuid,nodev"):
        checkpoint(served, container, tmp_path / "c.tar")
    assert members(tmp_path / "c.tar").keys() >= {"checkpoint/inventory.img", "status.dump"}
    assert_still_counting(kubelet, container)
    (tmp_path / "c.tar").unlink()
    assert_nothing_left(served, tmp_path)


def test_checkpointctl_reads_an_archive(served: Served, kubelet: Kubelet, node: Node, tmp_path: Path) -> None:
    assert node.criu is not None
    container = started(kubelet)
    checkpoint(served, container, tmp_path / "c.tar")
    name = json.loads(members(tmp_path / "c.tar")["config.dump"])["name"]
    program = command_of(node.criu, "usr/bin/checkpointctl")
    shown = subprocess.run(
        [*program, "show", str(tmp_path / "c.tar")], check=True, capture_output=True, text=True
    ).stdout
    assert name in shown
    assert container[:12] in shown
    inspect = [*program, "inspect", str(tmp_path / "c.tar"), "--format=json", "--ps-tree", "--stats", "--mounts"]
    [found] = json.loads(subprocess.run(inspect, check=True, capture_output=True, text=True).stdout)
    assert found["process_tree"]["command"] == "sh"
    assert found["statistics"]["pages_written"] > 0


def test_a_container_continues_from_its_archive(
    served: Served, kubelet: Kubelet, node: Node, criu: Criu, tmp_path: Path
) -> None:
    container = started(kubelet, **secured(namespace_options=pb.NamespaceOption(pid=pb.CONTAINER)))
    kubelet.inside(container, "echo written > /marker; rm /bin/wget")
    checkpoint(served, container, tmp_path / "c.tar")
    base = tmp_path / "base"
    with tarfile.open(tmp_path / "c.tar") as archive:
        archive.extractall(base, filter="tar")
    at = int(layer_file(base / "rootfs-diff.tar", "state"))
    served.engine.api.kill(container)
    root = base / "rootfs"
    unpack_image(served, container, root)
    apply_layer(base / "rootfs-diff.tar", root)
    spec = json.loads((base / "spec.dump").read_text())
    spec["root"]["path"] = str(root)
    spec["linux"]["cgroupsPath"] += "-restored"
    (base / "config.json").write_text(json.dumps(spec))
    runc = [str(node.stable.root / "usr/sbin/runc"), "--root", str(tmp_path / "states")]
    images = ["--image-path", str(base / "checkpoint"), "--work-path", str(base)]
    log = base / "restored.log"
    try:
        with log.open("wb") as output:
            restore = [*runc, "restore", "--detach", "--bundle", str(base), *images, "--tcp-established", "restored"]
            done = subprocess.run(
                restore,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PATH": f"{criu.script.parent}:{os.environ['PATH']}"},
            )
        assert done.returncode == 0, log.read_text()[-1500:]
        wait_until(lambda: int((root / "state").read_text() or 0) > at + 2)
        assert (root / "marker").read_text() == "written\n"
        assert not (root / "bin/wget").exists()
    finally:
        subprocess.run([*runc, "delete", "--force", "restored"], check=False)


def layer_file(layer: Path, name: str) -> bytes:
    with tarfile.open(layer) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def unpack_image(served: Served, container: str, root: Path) -> None:
    api = served.engine.api
    made = api.create_container(api.inspect_container(container)["Image"], ["-"])["Id"]
    try:
        # An export by Docker 26 leaves the container's root mounted.
        content, _ = api.get_archive(made, "/.")
        with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as files:
            files.extractall(root, filter="tar")
    finally:
        api.remove_container(made)


def apply_layer(layer: Path, root: Path) -> None:
    with tarfile.open(layer) as archive:
        for each in archive:
            path = Path(each.name)
            if path.name.startswith(".wh."):
                (root / path.parent / path.name.removeprefix(".wh.")).unlink()
            else:
                archive.extract(each, root, filter="tar")


def test_a_container_with_a_terminal_can_be_checkpointed(served: Served, kubelet: Kubelet, tmp_path: Path) -> None:
    container = started(kubelet, tty=True)
    checkpoint(served, container, tmp_path / "c.tar")
    assert_still_counting(kubelet, container)


ECHO = """exec > /dev/null 2>&1
nc -ll -p 9 -e cat &
(until (while echo x; do sleep 0.1; done) | nc 127.0.0.1 9 > /echoed; do sleep 0.1; done) &
"""
"""A script that connects to itself, and copies the reply into a file; it retries until the listener is up."""


def test_connections_survive_a_checkpoint(served: Served, kubelet: Kubelet, tmp_path: Path) -> None:
    container = started(kubelet)
    kubelet.inside(
        container,
        ECHO,
    )
    wait_until(lambda: len(kubelet.inside(container, "cat /echoed")) > 4)
    checkpoint(served, container, tmp_path / "c.tar")
    before = len(kubelet.inside(container, "cat /echoed"))
    wait_until(lambda: len(kubelet.inside(container, "cat /echoed")) > before + 4)


def test_the_log_is_in_the_archive(served: Served, kubelet: Kubelet, tmp_path: Path) -> None:
    pod = kubelet.pod(log_directory=str(tmp_path / "logs"))
    container = kubelet.started(pod, "sh", "-c", COUNTER, log_path="c.log")
    wait_until(lambda: (tmp_path / "logs/c.log").exists() and b"line 3" in (tmp_path / "logs/c.log").read_bytes())
    checkpoint(served, container, tmp_path / "c.tar")
    log = members(tmp_path / "c.tar")["container.log"]
    assert b"stdout F line 3\n" in log
    assert (tmp_path / "logs/c.log").read_bytes().startswith(log)


def test_unsupported_requests_are_refused_with_the_reason(served: Served, kubelet: Kubelet, tmp_path: Path) -> None:
    container = started(kubelet)
    (tmp_path / "there").touch()
    assert refused(served, container, tmp_path / "there")[0] == grpc.StatusCode.ALREADY_EXISTS
    (tmp_path / "there").unlink()
    assert refused(served, container, "relative.tar")[0] == grpc.StatusCode.INVALID_ARGUMENT
    code, text = refused(served, container, tmp_path / "none/c.tar")
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert str(tmp_path / "none") in text
    served.engine.api.pause(container)
    assert "it is paused" in refused(served, container, tmp_path / "c.tar")[1]
    served.engine.api.unpause(container)
    assert_still_counting(kubelet, container)
    served.engine.api.kill(container)
    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_EXITED)
    assert "is not running" in refused(served, container, tmp_path / "c.tar")[1]
    assert_nothing_left(served, tmp_path)


def test_a_container_in_a_user_namespace_is_refused(served: Served, kubelet: Kubelet, tmp_path: Path) -> None:
    pod = kubelet.pod(**in_context(namespace_options=own_users()))
    container = kubelet.started(pod, **secured(namespace_options=own_users()))
    code, text = refused(served, container, tmp_path / "c.tar")
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "user namespace" in text


def test_the_status_has_the_version_of_a_criu_that_works(served: Served) -> None:
    def described() -> str:
        answer = served.cri.runtime.Status(pb.StatusRequest(verbose=True))
        return str(json.loads(answer.info["config"])["criu"])

    wait_until(lambda: described().endswith(": dumps processes"))
    assert re.search(r"/criu \d+\.\d", described())


def test_a_criu_that_does_not_run_is_reported(served: Served, kubelet: Kubelet, criu: Criu, tmp_path: Path) -> None:
    container = started(kubelet)
    criu.install("echo Error: the kernel is too new; exit 1")
    code, text = refused(served, container, tmp_path / "c.tar")
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "the kernel is too new" in text
    assert "install the package criu" in text
    assert_nothing_left(served, tmp_path)


SLOW = 'case "$1" in swrk) sleep 3;; esac'


def test_after_a_timeout_the_container_runs_and_no_file_is_left(
    served: Served, kubelet: Kubelet, criu: Criu, tmp_path: Path
) -> None:
    container = started(kubelet)
    criu.install(SLOW)
    began = time.monotonic()
    assert refused(served, container, tmp_path / "c.tar", timeout=1)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 15
    assert_nothing_left(served, tmp_path)
    assert_still_counting(kubelet, container)


def test_after_a_crash_of_the_server_the_container_runs_and_no_file_is_left(
    served: Served, kubelet: Kubelet, criu: Criu, tmp_path: Path
) -> None:
    container = started(kubelet)
    criu.install(SLOW)
    request = pb.CheckpointContainerRequest(container_id=container, location=str(tmp_path / "c.tar"))
    call = served.cri.runtime.CheckpointContainer.future(request)
    wait_until(lambda: list((served.dirs.state / "checkpointing").glob("*/bin")) != [])
    served.server.kill()
    assert call.exception() is not None
    wait_until(lambda: list((served.dirs.state / "checkpointing").glob("*")) == [])
    served.revive()
    assert_still_counting(kubelet, container)
    assert_nothing_left(served, tmp_path)
