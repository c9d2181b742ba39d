"""Processes in new network namespaces, and a directory for pins."""

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
    """A process in a new network namespace."""
    return start_pod()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for pins, not created yet. All mounts below it are removed after the test.

    Its parent is a private mount: below a shared mount the kernel would list each pin twice.
    """
    parent = tmp_path / "run"
    parent.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "--bind", "--make-private", parent, parent], check=True)
    yield parent / "netns"
    unmount_below(parent)


@pytest.fixture
def pinned(directory: Path, pod: Pod) -> Path:
    """A pin of the namespace of `pod`."""
    path = directory / "cri-1"
    ensure_pinned(path, pid=pod.pid)
    return path
