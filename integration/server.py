"""The server under test: `pydockershim serve`, as its users start it unless it is forked."""

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
"""A start takes a second and a half of a processor, of which a busy machine gives little."""
STOP_SECONDS = 60.0
_IDLE_SECONDS = 0.05
"""How long a server does nothing that has nothing to do: longer than it waits for the end of a burst of events."""


class Server:
    """One `pydockershim serve`, its settings given as flags."""

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
        """Prepare a server on `socket`; `settings` are flags without their dashes, values as text.

        `program` is the command before its arguments, `environ` is added to our own environment. It runs in the
        network namespace `netns`, or else in ours. `forked` runs PROGRAM in a fork of a process that has loaded it.
        """
        if forked and (program is not PROGRAM or netns is not None):
            raise NodeError("a server that is forked has neither a program nor a network namespace of its own")
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
        """Start it, and return once it answers: its socket appears complete, and only then."""
        self.daemon.start(ready=self.socket.exists, timeout=START_SECONDS)

    def stop(self) -> None:
        """End it as systemd would."""
        self.daemon.stop(timeout=STOP_SECONDS)

    def kill(self) -> None:
        """End it as a crash would."""
        self.daemon.kill()

    def cpu_seconds(self) -> float:
        """Processor time it has used, in the kernel and outside, without that of its children."""
        fields = Path(f"/proc/{self.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_idle(self) -> None:
        """Return when it has done nothing for a moment, so that nothing is left that a call or an event has led to."""
        before = -1
        while (now := self._ran_ns()) != before:
            before = now
            time.sleep(_IDLE_SECONDS)

    def _ran_ns(self) -> int:
        """How long its present threads have run, in ns."""
        ran = 0
        for task in Path(f"/proc/{self.daemon.pid}/task").glob("*/schedstat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                ran += int(task.read_text().split()[0])
        return ran

    def rss(self) -> int:
        """Resident memory in bytes."""
        pages = int(Path(f"/proc/{self.daemon.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def peak_rss(self) -> int:
        """Largest resident memory since its start, or since `forget_peak`, in bytes."""
        lines = Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    def forget_peak(self) -> None:
        """Measure the largest resident memory from now on."""
        Path(f"/proc/{self.daemon.pid}/clear_refs").write_text("5")
