"""What the shim knows of its Engine, and whether that answers."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from shim.base import deadline
from shim.base.background import Background
from shim.config.model import RestrictOomScoreAdj
from shim.domain.errors import FailedPrecondition, ShimError, Unavailable
from shim.engine.answers import EngineInfo, Runtime
from shim.engine.hanging import answered_within
from shim.engine.interface import Engine

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 4.0
"""How long Status and Version wait for Docker, so that they answer within 5 s.

Docker answers a ping from memory and takes no lock for it: also on a machine whose processors and disks are busy it
takes milliseconds. Four seconds without an answer mean that the process does not run. One that does again is ready at
the next Status, which a kubelet asks for every 5 s, and no pod is evicted for that.
"""
KEPT_SECONDS = 1.0
"""How long Version waits for Docker where there is an earlier answer to give."""
INFO_SECONDS = 30.0
"""Bound on one look at Docker's `info`. That takes locks of containers, and is slow while Docker starts hundreds."""
INFO_AGE = 60.0
"""Seconds after which Status has the Engine asked again what it is, without waiting for it."""
INFO_TRUSTED = 120.0
"""Seconds after which an Engine that answers pings, but has not described itself in at least one request of
INFO_SECONDS, has to show by its components that it works."""
CURRENT_SECONDS = 1.0
"""How long a description is waited for that is due, where there is an earlier one or another question to ask."""

PING = "ping docker"
_READ = "read docker's info"
_COMPONENTS = "ask docker for the versions of its components"

CAP_SYS_RESOURCE = 24
"""Bit of the capability that may lower an OOM score (capabilities(7))."""


class Kept(Protocol):
    """What Docker last said of itself to this server or an earlier one, empty where it never has."""

    @property
    def server_version(self) -> str:
        """Docker's version."""
        ...

    @property
    def cgroup_driver(self) -> str:
        """Docker's cgroup driver."""
        ...

    def keep(self, *, server_version: str, cgroup_driver: str) -> None:
        """Take over a new answer."""
        ...


class EngineFacts:
    """The Engine's `info`, asked rarely, whether it answers at all, and the lowest OOM score it can give. Thread-safe.

    `info` takes the daemon tens of milliseconds, so RunPodSandbox must not ask it each time: the Status RPC, which
    the kubelet calls every few seconds, keeps it fresh.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        restrict_oom_score_adj: RestrictOomScoreAdj,
        kept: Kept | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`kept` outlives the server; None keeps nothing."""
        self._engine = engine
        self._proc = proc
        self._restrict = restrict_oom_score_adj
        self._kept = kept
        self._lock = threading.Lock()
        self._info: EngineInfo | None = None
        self._read_at = 0.0
        self._daemon = 0
        """How many daemons there have been: `refresh` was called so often."""
        self._described = 0
        """Which of them `_info` is of."""
        self._oom_floor: int | None = None
        self._pings: Background[None] = Background(self._ping, name="docker-ping")
        self._looks: Background[EngineInfo] = Background(self._read, name="docker-info")
        self._checks: Background[None] = Background(self._check_components, name="docker-version")

    def info(self, *, max_age: float | None = None) -> EngineInfo:
        """Give the Engine's description, at most `max_age` seconds old; None accepts any age.

        Raises what the Engine does, DeadlineExceeded after INFO_SECONDS.
        """
        info = self._info
        if info is not None and (max_age is None or self._age() <= max_age):
            return info
        return self._read()

    def check_answers(self) -> None:
        """Return if the Engine answers now, within ANSWER_SECONDS; however many ask, it is pinged once at a time.

        Raises a ShimError that names the call it has left unanswered, or refused.
        """
        end = time.monotonic() + ANSWER_SECONDS
        with answered_within(ANSWER_SECONDS, what=PING):
            self._pings.join(what=PING)
        age = self._age()
        if self._info is None:
            with answered_within(end - time.monotonic(), what=_READ):
                self._looks.join(what=_READ)
        elif age > INFO_TRUSTED:
            self._check_works(end)
        elif age > INFO_AGE or self._is_of_an_earlier_daemon:
            self._looks.begin()

    def refresh(self) -> None:
        """Have the Engine asked what it is, without waiting for it: from now on it may be another daemon.

        What needs the answer waits CURRENT_SECONDS for it, and takes the earlier one then.
        """
        with self._lock:
            self._daemon += 1
            self._oom_floor = None
        try:
            self._looks.begin()
        except ShimError as error:
            log.debug("docker's info is read later", error=error)

    def server_version(self) -> str:
        """Give the Engine's version, while it does not answer that of its last answer.

        Unavailable where it does not answer now and never has.
        """
        if (info := self._current()) is not None:
            return info.server_version
        kept = self._kept.server_version if self._kept else ""
        return self._asked("version", lambda info: info.server_version, kept=kept)

    def cgroup_driver(self) -> str:
        """Give the Engine's cgroup driver; as `server_version`."""
        if (info := self._current()) is not None:
            return info.cgroup_driver
        kept = self._kept.cgroup_driver if self._kept else ""
        return self._asked("cgroup driver", lambda info: info.cgroup_driver, kept=kept)

    @property
    def _is_of_an_earlier_daemon(self) -> bool:
        return self._described != self._daemon

    def _current(self) -> EngineInfo | None:
        """Return the description of the daemon there is now, an earlier one while it does not answer."""
        if self._info is not None and self._is_of_an_earlier_daemon:
            self._looked(CURRENT_SECONDS)
        return self._info

    def _looked(self, seconds: float) -> bool:
        """Whether the Engine describes itself within `seconds`."""
        try:
            with answered_within(seconds, what=_READ):
                self._looks.join(what=_READ)
        except ShimError as error:
            deadline.current().check(_READ)
            log.debug("docker does not describe itself", error=str(error))
            return False
        return True

    def _check_works(self, end: float) -> None:
        """Return if the Engine describes itself, or asks its components, until `end` by the monotonic clock.

        Engine 20.10 describes itself only when no pull or login resolves the name of a registry, which takes
        15 to 25 s for a name that cannot be resolved: many such pulls one after the other are no reason to call the
        node not ready.
        """
        if self._looked(min(CURRENT_SECONDS, end - time.monotonic())):
            return
        with answered_within(end - time.monotonic(), what=_COMPONENTS):
            self._checks.join(what=_COMPONENTS)
        log.debug("docker has not described itself for long, but its components answer", seconds=round(self._age()))

    def _asked(self, what: str, choose: Callable[[EngineInfo], str], *, kept: str) -> str:
        """Ask for the description, for a shorter time where there is something `kept` to answer with."""
        try:
            with answered_within(KEPT_SECONDS if kept else ANSWER_SECONDS, what=_READ):
                return choose(self._looks.join(what=_READ))
        except FailedPrecondition:
            raise
        except ShimError as error:
            deadline.current().check(_READ)
            if kept:
                log.debug("answering with what docker last said of itself", what=what, kept=kept, error=str(error))
                return kept
            raise Unavailable(
                f"docker's {what} is not known, and docker has never answered this server: {error}; "
                "start docker (systemctl start docker), or see journalctl --unit docker"
            ) from error

    def _age(self) -> float:
        """Return the age of the description in seconds, infinity where there is none."""
        return math.inf if self._info is None else time.monotonic() - self._read_at

    def _ping(self) -> None:
        with answered_within(ANSWER_SECONDS, what=PING):
            self._engine.ping()

    def _check_components(self) -> None:
        with answered_within(ANSWER_SECONDS, what=_COMPONENTS):
            self._engine.check_components()

    def _read(self) -> EngineInfo:
        asked_at, daemon = time.monotonic(), self._daemon
        with answered_within(INFO_SECONDS, what=_READ):
            info = self._engine.info()
        self._info, self._read_at, self._described = info, asked_at, daemon
        if self._kept is not None:
            self._take_over(info, self._kept)
        return info

    def _take_over(self, info: EngineInfo, kept: Kept) -> None:
        if kept.cgroup_driver not in ("", info.cgroup_driver):
            log.error(
                "docker's cgroup driver has changed: restart the kubelet, which asks for it only at its start",
                before=kept.cgroup_driver,
                now=info.cgroup_driver,
            )
        kept.keep(server_version=info.server_version, cgroup_driver=info.cgroup_driver)

    def runtimes(self, *, wanted: str = "") -> dict[str, Runtime]:
        """Runtimes by name; asks anew when `wanted` is not among them, since a daemon reload can add some."""
        runtimes = self.info().runtimes or {}
        if wanted and wanted not in runtimes:
            runtimes = self.info(max_age=0).runtimes or {}
        return runtimes

    @property
    def systemd_cgroups(self) -> bool:
        """Whether Docker places containers by systemd slices."""
        return (self._current() or self.info()).cgroup_driver == "systemd"

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
