"""Logs that cannot be written: no call waits, each failure is reported, and in the end the logs are complete."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.logs.conftest import Logged
from integration.logs.crilog import numbers, read, so_far
from integration.node.mounts import unmount_all
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


@pytest.fixture
def small_disk(logged: Logged) -> Iterator[Path]:
    """Mount a file system of 64 KiB for the logs of the pod."""
    directory = logged.directory
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        unmount_all(directory, abandon=True)


def blocked(logged: Logged, container_id: str) -> str:
    figures = logged.stats()["figures"]
    found = [entry["error"] for entry in (figures or {}).get("blocked", []) if entry["id"] == container_id]
    return str(found[0]) if found else ""


def test_a_log_on_a_full_disk_is_completed_once_there_is_room(logged: Logged, small_disk: Path) -> None:
    container_id, path = logged.run("seq 0 5000")
    other, _ = logged.run("sleep 600", labels={"beside": "it"})
    assert "no space left" in wait_until(lambda: blocked(logged, container_id))
    cri = logged.served.cri

    # The container exited, but its log is incomplete. Other containers are served as usual.
    assert cri.container_status(container_id).state == pb.CONTAINER_RUNNING
    assert cri.container_status(other).state == pb.CONTAINER_RUNNING
    assert 0 < len(read(path)) < 5001

    subprocess.run(["mount", "-o", "remount,size=10m", small_disk], check=True)
    logged.wait_exited(container_id)
    assert numbers(read(path)) == list(range(5001))
    assert not blocked(logged, container_id)


def test_a_log_is_written_once_its_directory_can_be_made(logged: Logged) -> None:
    logged.directory.write_text("a file is in the way")
    container_id, path = logged.run("seq 0 100; sleep 600")

    assert logged.served.cri.container_status(container_id).state == pb.CONTAINER_RUNNING
    assert "not a directory" in wait_until(lambda: blocked(logged, container_id))
    logged.directory.unlink()
    wait_until(lambda: path.exists() and len(so_far(path)) == 101)
    assert numbers(read(path)) == list(range(101))
