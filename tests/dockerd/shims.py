"""Fake containerd-shims in directories like containerd's."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import ctypes, os, socket, sys
ctypes.CDLL(None).prctl(15, b"containerd-shim")  # PR_SET_NAME
os.chdir(sys.argv[1])
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[2])
listening.listen()
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def running_shim(task: Path, address: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process with a containerd-shim's name in the directory of a task, listening at an address."""
    argv = [sys.executable, "-c", _PROGRAM, str(task), str(address)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def make_task(task: Path, *, address: Path, docker_root: Path, resolv_conf: Path, old: bool = False) -> Path:
    """Make the directory of a task; with `old` as containerd before 2.0 does."""
    task.mkdir(parents=True)
    mounts = [
        {"destination": "/proc", "source": "proc"},
        {"destination": "/etc/resolv.conf", "source": str(resolv_conf / "of-a-pod")},
    ]
    config = {"root": {"path": str(docker_root / "rootfs" / task.name)}, "mounts": mounts}
    (task / "config.json").write_text(json.dumps(config))
    if old:
        (task / "address").write_text(f"unix://{address}")
    else:
        (task / "bootstrap.json").write_text(json.dumps({"version": 3, "address": f"unix://{address}"}))
    return task
