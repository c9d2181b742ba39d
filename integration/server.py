"""The server under test: `pydockershim serve`, started as users start it, or forked."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from integration.forked import ForkedServer
from integration.node.commands import NodeError
from integration.node.daemon import Daemon
from integration.node.netns import Netns

PROGRAM = (sys.executable, "-m", "shim")
START_SECONDS = 180.0
"""A start takes 1.5 s of processor time, which can be long on a busy machine."""
STOP_SECONDS = 60.0
_IDLE_SECONDS = 0.05
"""How long an idle server must not run: longer than it waits for the end of a burst of events."""


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Server:
    """A `pydockershim serve`, with its settings as flags."""

    def __init__(
        self,
        settings: Mapping[str, object],
        *,
        socket: Path,
        log: Path,
        program: Sequence[str] = PROGRAM,
        environ: Mapping[str, str] | None = None,
        netns: Netns | None = None,
        forked: bool = False,
    ) -> None:
        """Prepare a server on `socket`; `settings` maps flags without dashes to values.

        `program` is the command before its arguments; `environ` is added to this process's environment. The server runs
        in the network namespace `netns`, by default in the current one. `forked` runs PROGRAM in a fork of a process
        that has loaded it.
        """
        if forked and (program is not PROGRAM or netns is not None):
            raise NodeError("a forked server takes neither a program nor a network namespace")
        self.socket = socket
        self.nri_socket = socket.with_suffix(".nri")
        flags = [f"--{name}={value}" for name, value in settings.items()]
        if not any("nri" in name for name in settings):
            flags.append(f"--nri-socket-path={self.nri_socket}")
        self.daemon = (ForkedServer if forked else Daemon)(
            [
                *(netns.prefix if netns else ()),
                *(*program, "serve", f"--container-runtime-endpoint=unix://{socket}", *flags),
            ],
            log=log,
            env={**os.environ, **(netns.environ if netns else {}), **(environ or {})},
        )

    def start(self) -> None:
        """Start the server, and return when it answers: its socket appears only then."""
        self.daemon.start(ready=self.socket.exists, timeout=START_SECONDS)

    def stop(self) -> None:
        """Stop the server as systemd would."""
        self.daemon.stop(timeout=STOP_SECONDS)

    def kill(self) -> None:
        """Kill the server, as in a crash."""
        self.daemon.kill()

    def cpu_seconds(self) -> float:
        """Return the processor time of the server without its children, in seconds."""
        fields = Path(f"/proc/{self.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_idle(self) -> None:
        """Return when the server has been idle for a moment, so that all work from earlier calls and events is done."""
        before = -1
        while (now := self._ran_ns()) != before:
            before = now
            time.sleep(_IDLE_SECONDS)

    def _ran_ns(self) -> int:
        """Return how long its present threads have run, in ns."""
        ran = 0
        for task in Path(f"/proc/{self.daemon.pid}/task").glob("*/schedstat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                ran += int(task.read_text().split()[0])
        return ran

    def rss(self) -> int:
        """Return the resident memory in bytes."""
        return resident_bytes(self.daemon.pid)

    def peak_rss(self) -> int:
        """Return the peak resident memory since the start or since `forget_peak`, in bytes."""
        lines = Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    def forget_peak(self) -> None:
        """Reset the peak of the resident memory."""
        Path(f"/proc/{self.daemon.pid}/clear_refs").write_text("5")
