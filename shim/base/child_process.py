"""Child processes that run a module of the server: the log process and the helper for host paths.

The code that starts a child also replaces it when it dies or does not answer (`shim.base.heartbeat`).
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # prctl(2)

SERVER_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Systemd and terminals send these to the server and its children. Children ignore them: they end with the server."""


class ChildProcess:
    """A child process that runs a Python module, and the server's end of a socket to it.

    The child's first argument is the descriptor of its end of the socket. It must exit when the server closes its end.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """Start the child with SERVER_SIGNALS blocked. Raise OSError if it cannot be started."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._child = _start(module, str(theirs.fileno()), *arguments, pass_fds=[theirs.fileno()])
            except BaseException:
                self.socket.close()
                raise

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative for the signal that ended the child; None until the child is reaped."""
        return self._child.poll()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._child.kill()

    def reap(self, *, seconds: float) -> None:
        """Wait `seconds` for the child to exit; then kill it and wait `seconds` again.

        If the child hangs in the kernel it cannot be killed, and `exit_code` is still None afterwards.
        """
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)


def _start(module: str, *arguments: str, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # The child inherits the mask, so no signal can reach it before it runs. Only this thread's mask changes.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)
    try:
        return subprocess.Popen(
            # With -P and the server's sys.path, the child imports modules from the same directories as the server.
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=pass_fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that started it ends. Raise OSError.

    A process that is stopped, or that waits for a disk, would not notice that its socket was closed, and would keep
    locks that the next server needs. `parent` is the pid of the server: if it has already ended, this process exits.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        failure = ctypes.get_errno()
        raise OSError(failure, f"prctl(PR_SET_PDEATHSIG): {os.strerror(failure)}")
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, has ended")
