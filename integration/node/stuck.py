"""A process that hangs in the kernel, in munmap of a page of a hanging volume; `ps` hangs on it too.

`python -m integration.node.stuck FILE` is that process: it holds the lock of its address space while it waits.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.node.fuse import HangingVolume
from integration.waiting import wait_until

_PAGE = 4096
_READ_WRITE, _SHARED, _PRIVATE_ANONYMOUS = 3, 1, 0x22
_THREADS = 2
_SECONDS = 60.0


@contextmanager
def stuck_process(volume: HangingVolume) -> Iterator[int]:
    """Run such a process while the block runs, and yield its pid; it ends when the volume answers again."""
    argv = [sys.executable, "-m", "integration.node.stuck", str(volume.file)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the process did not write to its page"
        with volume.hanging(writes_only=True):
            process.send_signal(signal.SIGUSR1)
            wait_until(lambda: _waiting(process.pid) == _THREADS, _SECONDS)
            yield process.pid
    finally:
        process.kill()
        process.wait(_SECONDS)
        process.stdout.close()


def _waiting(pid: int) -> int:
    """Return the number of a process's threads in uninterruptible sleep."""
    stats = (path.read_text() for path in Path("/proc", str(pid), "task").glob("*/stat"))
    return sum(stat.rpartition(")")[2].split()[0] == "D" for stat in stats)


def _hang(path: str) -> None:
    libc = ctypes.CDLL(None)
    size, number = ctypes.c_size_t, ctypes.c_long
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, number]
    libc.munmap.argtypes = [ctypes.c_void_p, size]
    descriptor = os.open(path, os.O_RDWR)
    address = libc.mmap(None, _PAGE, _READ_WRITE, _SHARED, descriptor, 0)
    ctypes.memset(address, 1, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print("written", flush=True)
    signal.sigwait({signal.SIGUSR1})

    def queue_for_the_lock() -> None:
        # The first thread holds only a read lock while it waits; readers such as `ps` wait behind a waiting writer.
        time.sleep(0.2)
        libc.mmap(None, 1 << 24, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)

    threading.Thread(target=queue_for_the_lock, daemon=True).start()
    libc.munmap(address, _PAGE)


if __name__ == "__main__":
    _hang(sys.argv[1])
