"""A background program of the node: start it, wait until it is ready, stop or kill it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from integration.node.commands import NodeError, allowed, tail

_TICK_SECONDS = 0.02
_KILL_SECONDS = 60


class Child(Protocol):
    """A started process: the part of `subprocess.Popen` that a Daemon needs."""

    @property
    def pid(self) -> int:
        """Its pid."""

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its exit code; raise subprocess.TimeoutExpired after `timeout` seconds."""

    def send_signal(self, number: signal.Signals, /) -> None:
        """Send a signal unless the process has ended."""


class Daemon:
    """A program with its log file.

    It has its own session: Ctrl-C in the terminal reaches only the tests, which then stop their daemons in order.
    Daemons of a killed test run end with its namespaces (see `isolation`).
    """

    def __init__(self, argv: Sequence[str | os.PathLike[str]], *, log: Path, env: Mapping[str, str]) -> None:
        self.argv = tuple(os.fspath(word) for word in argv)
        self.log = log
        self.env = dict(env)
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The pid of the running program; raises NodeError if it is not running."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the program was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self, *, ready: Callable[[], bool], timeout: float) -> None:
        """Start the program and return when `ready` is true.

        Raises NodeError with the log if the program ends before, or after `timeout` seconds.
        """
        self.spawn()
        try:
            self.wait_ready(ready, timeout=timeout)
        except BaseException:
            self.kill()
            raise

    def spawn(self) -> None:
        """Start the program without waiting for it."""
        if self.running:
            raise NodeError(f"start {self.argv[0]}: already running")
        self._child = self._launch()

    def _launch(self) -> Child:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )

    def _started(self) -> Child:
        if self._child is None:
            raise NodeError(f"{self.argv[0]} is not running")
        return self._child

    def wait_ready(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return when `ready` is true; raise NodeError if the program ends before, or after `timeout` seconds."""
        deadline = time.monotonic() + allowed(timeout)
        while not ready():
            if self.wait_ended(_TICK_SECONDS):
                raise NodeError(f"start {self.argv[0]}: it ended\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise NodeError(f"start {self.argv[0]}: no answer in time\n{self.log_tail()}")

    def wait_ended(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the program to end by itself; return whether it ended."""
        if self._child is None:
            return True
        try:
            self._child.wait(allowed(timeout))
        except subprocess.TimeoutExpired:
            return False
        self._child = None
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP makes a daemon that hangs."""
        self._started().send_signal(number)

    def stop(self, *, timeout: float) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds; does nothing if the program is not running."""
        if not self.running:
            self.wait_ended(0)
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if not self.wait_ended(timeout):
            self.kill()

    def kill(self) -> None:
        """Kill the program, as in a crash."""
        if self.running:
            self.signal(signal.SIGKILL)
        self.wait_ended(timeout=_KILL_SECONDS)

    def log_tail(self) -> str:
        """Return the last lines of the program's log."""
        return tail(self.log.read_text(errors="replace"))
