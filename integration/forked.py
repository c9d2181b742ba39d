"""The server, forked from a process that has loaded the program.

Loading takes most of a start, and tests start hundreds of servers. The process is the fork server of `multiprocessing`,
which also reaps the servers.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from integration.node.commands import NodeError
from integration.node.daemon import Child, Daemon

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["shim.cli", "shim.daemon.serve"])


class ForkedServer(Daemon):
    """`python -m shim serve`. In /proc it has the command line of the fork server."""

    def __init__(self, argv: Sequence[str | os.PathLike[str]], *, log: Path, env: Mapping[str, str]) -> None:
        super().__init__(argv, log=log, env=env)
        # At exit, multiprocessing would wait forever for a server stopped by SIGSTOP.
        atexit.register(self.kill)

    def _launch(self) -> Child:
        arguments = self.argv[self.argv.index("serve") :]
        process = _context.Process(target=_main, args=(arguments, self.env, self.log), daemon=True)
        process.start()
        return _Forked(process)


class _Forked:
    """A process of multiprocessing as a Child."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its pid."""
        if self._process.pid is None:
            raise NodeError("the process was not started")
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its exit code; raise subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("serve", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)


def _main(arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    from shim.cli import main  # noqa: PLC0415 - preloaded, in the fork server alone

    os.setsid()
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(env)
    sys.exit(main(arguments))
