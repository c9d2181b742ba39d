"""What the shim knows of its Engine between two looks at it."""

import threading
import time
from pathlib import Path

import structlog

from shim.config.model import RestrictOomScoreAdj
from shim.engine.answers import EngineInfo, Runtime
from shim.engine.interface import Engine

log = structlog.get_logger(__name__)

CAP_SYS_RESOURCE = 24
"""Bit of the capability that may lower an OOM score (capabilities(7))."""


class EngineFacts:
    """The Engine's `info`, asked rarely, and the lowest OOM score it can give. Thread-safe.

    `info` takes the daemon tens of milliseconds, so RunPodSandbox must not ask it each time: the Status RPC, which
    the kubelet calls every few seconds, keeps it fresh.
    """

    def __init__(
        self, engine: Engine, *, restrict_oom_score_adj: RestrictOomScoreAdj, proc: Path = Path("/proc")
    ) -> None:
        self._engine = engine
        self._proc = proc
        self._restrict = restrict_oom_score_adj
        self._lock = threading.Lock()
        self._info: EngineInfo | None = None
        self._read_at = 0.0
        self._oom_floor: int | None = None

    def info(self, *, max_age: float | None = None) -> EngineInfo:
        """Give the Engine's description, at most `max_age` seconds old; None accepts any age."""
        info, age = self._info, time.monotonic() - self._read_at
        if info is not None and (max_age is None or age <= max_age):
            return info
        info = self._engine.info()
        self._info, self._read_at = info, time.monotonic()
        return info

    def runtimes(self, *, wanted: str = "") -> dict[str, Runtime]:
        """Runtimes by name; asks anew when `wanted` is not among them, since a daemon reload can add some."""
        runtimes = self.info().runtimes or {}
        if wanted and wanted not in runtimes:
            runtimes = self.info(max_age=0).runtimes or {}
        return runtimes

    @property
    def systemd_cgroups(self) -> bool:
        """Whether Docker places containers by systemd slices."""
        return self.info().cgroup_driver == "systemd"

    def possible_oom_score_adj(self, wanted: int) -> int:
        """`wanted`, or the lowest score Docker can set where that is higher (setting restrict_oom_score_adj).

        Without CAP_SYS_RESOURCE on the machine nobody can go below the score of the process that starts containers, and
        runc fails with an error that does not name the cause.
        """
        with self._lock:
            if self._oom_floor is None:
                self._oom_floor = self._find_oom_floor()
            return max(wanted, self._oom_floor)

    def _find_oom_floor(self) -> int:
        if self._restrict == "false":
            return -1000
        # The daemon's limits count, not ours. Behind systemd's socket activation the peer is init, whose bounding
        # set is what the daemon got.
        daemon = self._proc / str(self._engine.daemon_pid() or "self")
        if not daemon.exists():
            daemon = self._proc / "self"  # a daemon of another pid namespace: what holds for us is the best guess
        if self._restrict == "auto" and may_lower_oom_scores(daemon):
            return -1000
        floor = int((daemon / "oom_score_adj").read_text())
        log.warning("OOM scores are limited: Docker may not lower them on this machine", lowest=floor)
        return floor


def may_lower_oom_scores(process: Path) -> bool:
    """Whether the process of a /proc/<pid>, or what it starts, may lower an OOM score.

    The kernel asks for the capability in the initial user namespace. In another one, such as a rootless node's, the
    bounding set is full all the same.
    """
    return _has_capability(process / "status", CAP_SYS_RESOURCE) and _maps_every_user(process / "uid_map")


def _has_capability(status: Path, bit: int) -> bool:
    """Whether a /proc/<pid>/status names the capability in its bounding set."""
    for line in status.read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def _maps_every_user(uid_map: Path) -> bool:
    """Whether a /proc/<pid>/uid_map is the initial user namespace's; a kernel without namespaces has no such file."""
    try:
        return uid_map.read_text().split() == ["0", "0", "4294967295"]
    except FileNotFoundError:
        return True
