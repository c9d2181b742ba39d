"""The end of a process of the server's own with the server (prctl(2), PR_SET_PDEATHSIG)."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, however that ends.

    A process that is stopped, or that waits for a disk, would not notice the end of its socket, and hold what the next
    server needs. `parent` is the pid of the server: a process whose server has ended before this call exits here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        failure = ctypes.get_errno()
        raise OSError(failure, f"prctl(PR_SET_PDEATHSIG): {os.strerror(failure)}")
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, has ended")
