"""The program `read_filter.py RUNC DIRECTORY`: prints the seccomp filter that runc compiles from a profile.

The profile is JSON on standard input. The output is the flags in four bytes, then the instructions. runc creates a
container with the profile in the directory, but never starts it. After `create` the filter is in force, and the kernel
returns it to a tracer (ptrace(2), PTRACE_SECCOMP_GET_FILTER).

The program does not trace processes of real containers, because some programs do not tolerate the interruption.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Python runs without any package directory (-IS). The program needs only the package `shim`, which contains this file.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shim.base.proc import value_of

_SEIZE = 0x4206
_INTERRUPT = 0x4207
_GET_FILTER = 0x420C
_GET_METADATA = 0x420D
_WALL = 0x40000000

_FLAG_LOG = 1 << 1
_FLAG_SPEC_ALLOW = 1 << 2
_INSTRUCTION_BYTES = 8

_FILTER_SECONDS = 5.0
"""Limit for runc to install the filter after `create`, which takes milliseconds."""
_POLL_SECONDS = 0.001

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long


class _Metadata(ctypes.Structure):
    """struct seccomp_metadata of linux/ptrace.h."""

    _fields_ = (("filter_off", ctypes.c_uint64), ("flags", ctypes.c_uint64))


def main(runc: str, directory: str) -> None:
    """Print the filter of the profile on standard input."""
    home = Path(directory)
    bundle, state = home / "bundle", home / "state"
    root = bundle / "rootfs"
    root.mkdir(parents=True)
    program = root / "program"
    program.touch(mode=0o755)
    name = home.name
    (bundle / "config.json").write_text(json.dumps(_config(json.load(sys.stdin), name=name)))
    pid_file = home / "pid"
    command = [runc, "--root", str(state)]
    try:
        subprocess.run(
            [*command, "create", "--bundle", str(bundle), "--pid-file", str(pid_file), name],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        filter_ = _filter_of(int(pid_file.read_bytes()))
    finally:
        subprocess.run([*command, "delete", "--force", name], check=False, stdout=subprocess.DEVNULL)
    sys.stdout.buffer.write(filter_)


def _config(profile: object, *, name: str) -> dict[str, object]:
    capabilities = ["CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/program"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            # If this were set, runc would install the filter only at the start.
            "noNewPrivileges": False,
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts", "network")],
            "cgroupsPath": f"/{name}",
            "seccomp": profile,
        },
    }


def _filter_of(pid: int) -> bytes:
    """Wait for the filter of a process; return its flags and instructions."""
    give_up = time.monotonic() + _FILTER_SECONDS
    while _status(pid, "Seccomp") != "2":
        if time.monotonic() > give_up:
            raise SystemExit(f"process {pid} of runc has installed no filter for {_FILTER_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    if _status(pid, "Seccomp_filters") != "1":
        raise SystemExit(f"process {pid} of runc has {_status(pid, 'Seccomp_filters')} filters")
    _trace(_SEIZE, pid)
    _trace(_INTERRUPT, pid)
    os.waitpid(pid, _WALL)
    length = _trace(_GET_FILTER, pid)
    instructions = ctypes.create_string_buffer(length * _INSTRUCTION_BYTES)
    _trace(_GET_FILTER, pid, 0, instructions)
    metadata = _Metadata()
    _trace(_GET_METADATA, pid, ctypes.sizeof(metadata), ctypes.byref(metadata))
    flags = metadata.flags & _FLAG_LOG
    if "force mitigated" not in _status(pid, "Speculation_Store_Bypass"):
        flags |= _FLAG_SPEC_ALLOW
    os.kill(pid, signal.SIGKILL)
    return bytes(flags.to_bytes(4, "little") + instructions.raw)


def _trace(request: int, pid: int, address: int = 0, data: object = None) -> int:
    result = int(_libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), data))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")
    return result


def _status(pid: int, name: str) -> str:
    return value_of(Path(f"/proc/{pid}/status").read_bytes(), name.encode()).decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
