"""Cached facts about the Engine, and its health check."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from shim.base import deadline
from shim.base.background import Background
from shim.base.proc import value_of
from shim.config.model import RestrictOomScoreAdj
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, ShimError, Unavailable
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
PROMPT_SECONDS = 0.02
"""How long Status waits for a ping of a Docker that has answered another call less than RECENT_SECONDS ago.

A dockerd that stops hundreds of containers at once takes up to a second for a ping, and is not ill.
"""
RECENT_SECONDS = 2.0
"""So long after its last answer Docker counts as one that answers. Less than half of the 5 s after which a kubelet asks
again, so that a Docker that hangs shows in the next Status at the latest."""
KEPT_SECONDS = 1.0
"""How long Version waits for Docker if it has an earlier answer to return."""
INFO_SECONDS = 30.0
"""Bound on reading Docker's `info`, which takes locks of containers and is slow while Docker starts hundreds."""
INFO_AGE = 60.0
"""Seconds after which Status refreshes the `info` in the background."""
INFO_TRUSTED = 120.0
"""Seconds after which an Engine that answers pings, but not one `info` within INFO_SECONDS, has to prove by a call to
its components that it works."""
CURRENT_SECONDS = 1.0
"""How long to wait for a refreshed description if there is an earlier one, or another check to make."""

PING = "ping docker"
_READ = "read docker's info"
_COMPONENTS = "ask docker for the versions of its components"

CAP_SYS_RESOURCE = 24
"""Bit of the capability that may lower an OOM score (capabilities(7))."""


class Kept(Protocol):
    """Docker's last known description, kept over restarts of this server; empty if there is none yet."""

    @property
    def server_version(self) -> str:
        """Return Docker's version."""
        ...

    @property
    def cgroup_driver(self) -> str:
        """Return Docker's cgroup driver."""
        ...

    def keep(self, *, server_version: str, cgroup_driver: str) -> None:
        """Store a new description."""
        ...


class EngineFacts:
    """The Engine's `info`, read rarely, its health, and the lowest OOM score it can set. Thread-safe.

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
        """Read nothing yet. `kept` outlives the server; None keeps nothing."""
        self._engine = engine
        self._proc = proc
        self._restrict = restrict_oom_score_adj
        self._kept = kept
        self._lock = threading.Lock()
        self._info: EngineInfo | None = None
        self._read_at = 0.0
        self._daemon = 0
        """Number of daemons so far: the calls of `refresh`."""
        self._described = 0
        """The daemon that `_info` describes."""
        self._oom_floor: int | None = None
        self._pings: Background[None] = Background(self._ping, name="docker-ping")
        self._info_reads: Background[EngineInfo] = Background(self._read, name="docker-info")
        self._checks: Background[None] = Background(self._check_components, name="docker-version")

    def info(self, *, max_age: float | None = None) -> EngineInfo:
        """Return the Engine's description, at most `max_age` seconds old; None accepts any age.

        Raise what the Engine does, and DeadlineExceeded after INFO_SECONDS.
        """
        info = self._info
        if info is not None and (max_age is None or self._age() <= max_age):
            return info
        return self._read()

    def check_answers(self) -> None:
        """Check that the Engine answers within ANSWER_SECONDS; concurrent callers share one ping.

        Raise a ShimError that names the call which was not answered, or refused.
        """
        end = time.monotonic() + ANSWER_SECONDS
        if not self._answers_promptly():
            with answered_within(ANSWER_SECONDS, what=PING):
                self._pings.join(what=PING)
        age = self._age()
        if self._info is None:
            with answered_within(end - time.monotonic(), what=_READ):
                self._info_reads.join(what=_READ)
        elif age > INFO_TRUSTED:
            self._check_works(end)
        elif age > INFO_AGE or self._is_outdated:
            self._info_reads.begin()

    def refresh(self) -> None:
        """Start to read the description again: from now on the Engine may be another daemon.

        Calls that need it wait CURRENT_SECONDS for it, and then use the earlier one.
        """
        with self._lock:
            self._daemon += 1
            self._oom_floor = None
        try:
            self._info_reads.begin()
        except ShimError as error:
            log.debug("cannot read Docker's info yet", error=error)

    def server_version(self) -> str:
        """Return the Engine's version, from its last answer while it does not answer.

        Raise Unavailable if it does not answer and never has.
        """
        if (info := self._current()) is not None:
            return info.server_version
        kept = self._kept.server_version if self._kept else ""
        return self._fact("version", lambda info: info.server_version, kept=kept)

    def cgroup_driver(self) -> str:
        """Return the Engine's cgroup driver; as `server_version`."""
        if (info := self._current()) is not None:
            return info.cgroup_driver
        kept = self._kept.cgroup_driver if self._kept else ""
        return self._fact("cgroup driver", lambda info: info.cgroup_driver, kept=kept)

    def _answers_promptly(self) -> bool:
        """Start a ping. Return True once it is answered, and after PROMPT_SECONDS if another call has been recently.

        Return False without a recent answer, and raise a refusal as `check_answers` does.
        """
        if time.monotonic() - self._engine.answered_at > RECENT_SECONDS:
            return False
        try:
            with answered_within(PROMPT_SECONDS, what=PING):
                self._pings.join(what=PING)
        except DeadlineExceeded:
            deadline.current().check(PING)
        return True

    @property
    def _is_outdated(self) -> bool:
        return self._described != self._daemon

    def _current(self) -> EngineInfo | None:
        """Return the description of the current daemon, or of an earlier one while it does not answer."""
        if self._info is not None and self._is_outdated:
            self._refresh_within(CURRENT_SECONDS)
        return self._info

    def _refresh_within(self, seconds: float) -> bool:
        """Read the description again. Return whether it came within `seconds`."""
        try:
            with answered_within(seconds, what=_READ):
                self._info_reads.join(what=_READ)
        except ShimError as error:
            deadline.current().check(_READ)
            log.debug("cannot read Docker's info", error=str(error))
            return False
        return True

    def _check_works(self, end: float) -> None:
        """Check that the Engine answers `info` or a call to its components until `end` by the monotonic clock.

        Engine 20.10 blocks `info` while a pull or login resolves the name of a registry, 15 to 25 s for a name that
        cannot be resolved: a series of such pulls must not make the node not ready.
        """
        if self._refresh_within(min(CURRENT_SECONDS, end - time.monotonic())):
            return
        with answered_within(end - time.monotonic(), what=_COMPONENTS):
            self._checks.join(what=_COMPONENTS)
        log.debug("Docker's info is overdue, but its components answer", seconds=round(self._age()))

    def _fact(self, what: str, choose: Callable[[EngineInfo], str], *, kept: str) -> str:
        """Return a part of the description; wait a shorter time if there is something `kept` to return instead."""
        try:
            with answered_within(KEPT_SECONDS if kept else ANSWER_SECONDS, what=_READ):
                return choose(self._info_reads.join(what=_READ))
        except FailedPrecondition:
            raise
        except ShimError as error:
            deadline.current().check(_READ)
            if kept:
                log.debug("using last known fact about Docker", what=what, kept=kept, error=str(error))
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
            self._store(info, self._kept)
        return info

    def _store(self, info: EngineInfo, kept: Kept) -> None:
        if kept.cgroup_driver not in ("", info.cgroup_driver):
            log.error(
                "cgroup driver of Docker changed: restart the kubelet, which reads it only at its start",
                before=kept.cgroup_driver,
                now=info.cgroup_driver,
            )
        kept.keep(server_version=info.server_version, cgroup_driver=info.cgroup_driver)

    def runtimes(self, *, wanted: str = "") -> dict[str, Runtime]:
        """Return the runtimes by name, read again if `wanted` is missing: a daemon reload can add some."""
        runtimes = self.info().runtimes or {}
        if wanted and wanted not in runtimes:
            runtimes = self.info(max_age=0).runtimes or {}
        return runtimes

    @property
    def systemd_cgroups(self) -> bool:
        """Whether Docker places containers by systemd slices."""
        return (self._current() or self.info()).cgroup_driver == "systemd"

    def possible_oom_score_adj(self, wanted: int) -> int:
        """Return `wanted`, or the lowest score Docker can set if that is higher (setting restrict_oom_score_adj).

        Without CAP_SYS_RESOURCE no score can be set below that of the process that starts containers, and runc fails
        with an error that does not name the cause.
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
            daemon = self._proc / "self"  # a daemon of another pid namespace: assume our own limits
        if self._restrict == "auto" and may_lower_oom_scores(daemon):
            return -1000
        floor = int((daemon / "oom_score_adj").read_bytes())
        log.warning("Docker may not lower OOM scores on this machine", lowest=floor)
        return floor


def may_lower_oom_scores(process: Path) -> bool:
    """Whether the process of a /proc/<pid>, or what it starts, may lower an OOM score.

    The kernel asks for the capability in the initial user namespace. In another one, such as a rootless node's, the
    bounding set is full all the same.
    """
    return _has_capability(process / "status", CAP_SYS_RESOURCE) and _maps_every_user(process / "uid_map")


def _has_capability(status: Path, bit: int) -> bool:
    """Whether a /proc/<pid>/status names the capability in its bounding set."""
    return bool(int(value_of(status.read_bytes(), b"CapBnd") or b"0", 16) >> bit & 1)


def _maps_every_user(uid_map: Path) -> bool:
    """Whether a /proc/<pid>/uid_map is the initial user namespace's; a kernel without namespaces has no such file."""
    try:
        return uid_map.read_bytes().split() == [b"0", b"0", b"4294967295"]
    except FileNotFoundError:
        return True
