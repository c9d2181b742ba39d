"""Processes in network namespaces of their own, and a directory to pin them in."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shim.netns.pin import ensure_pinned
from tests.mounts import need_root, unmount_below

Pod = subprocess.Popen[bytes]


@pytest.fixture
def start_pod() -> Iterator[Callable[[], Pod]]:
    """Start a process that lives in a new network namespace until its stdin is closed."""
    need_root()
    with ExitStack() as stack:

        def start() -> Pod:
            pod = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(pod)
            assert pod.stdout is not None
            assert pod.stdout.readline() == b"ready\n"
            return pod

        yield start


@pytest.fixture
def pod(start_pod: Callable[[], Pod]) -> Pod:
    """One such process."""
    return start_pod()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where to pin; not made yet. Every mount in it is taken off afterwards.

    Below a private mount, whatever the machine's own are: with a shared parent the kernel lists a pin twice.
    """
    parent = tmp_path / "run"
    parent.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "--bind", "--make-private", parent, parent], check=True)
    yield parent / "netns"
    unmount_below(parent)


@pytest.fixture
def pinned(directory: Path, pod: Pod) -> Path:
    """The namespace of that process, pinned."""
    path = directory / "cri-1"
    ensure_pinned(path, pid=pod.pid)
    return path
