"""Processes of the server's own, beside it: a log process and a helper for host paths.

Their owners replace them when they die or do not answer (`shim.base.heartbeat`), each in its own time.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

SERVER_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Sent by systemd and terminals to the server and all it started. Its own processes end with it, not before it."""


class ChildProcess:
    """A process that runs a module of the server's own, and the server's end of a socket between the two.

    Its first argument is the descriptor of its end. When the server's end is closed, it is to end.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """Start it. OSError where the node lacks what it takes. SERVER_SIGNALS do not end it."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._child = _start(module, str(theirs.fileno()), *arguments, pass_fds=[theirs.fileno()])
            except BaseException:
                self.socket.close()
                raise

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, negative for the signal that ended it; None until it is reaped."""
        return self._child.poll()

    def kill(self) -> None:
        """Kill it. It is gone once it is reaped."""
        self._child.kill()

    def reap(self, *, seconds: float) -> None:
        """Wait until it has ended, as it was asked to; kill it after `seconds`, and wait as long once more.

        A process that hangs in the kernel cannot be killed: it has no `exit_code` afterwards.
        """
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)


def _start(module: str, *arguments: str, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # Inherited, and so in force before the process could ask for it; other threads of the server keep theirs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)
    try:
        return subprocess.Popen(
            # -P, and the server's own path: no directory that the server takes nothing from lends it modules.
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=pass_fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
