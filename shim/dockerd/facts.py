"""Cached facts about the Engine, and its health check."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from shim.base import deadline
from shim.base.proc import value_of
from shim.base.single_flight import Background
from shim.config.model import RestrictOomScoreAdj
from shim.domain.errors import FailedPrecondition, ShimError, Unavailable
from shim.engine.answers import EngineInfo, Runtime
from shim.engine.failures import answered_within
from shim.engine.interface import Engine

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 4.0
"""How long Status and Version wait for Docker, so that they answer within 5 s.

Docker answers a ping from memory without a lock, within milliseconds even on a busy machine. If it takes four seconds,
its process is stopped or hangs. Once it runs again, the next Status reports it as ready. The kubelet requests the
status every 5 s, and evicts no pod after a single failure.
"""
RECENT_SECONDS = 2.0
"""Status does not ping Docker if Docker has answered any call within this time, because a dockerd that stops hundreds
of containers at once may take a second for a ping. The time is less than half of the kubelet's 5 s between two Status
calls, so that a hung Docker is reported at the next Status at the latest."""

FALLBACK_SECONDS = 1.0
"""How long to wait for Docker's `info` before an earlier `info` is used."""
INFO_SECONDS = 30.0
"""Timeout of reading Docker's `info`, which locks containers, so it is slow while Docker starts many of them."""
INFO_AGE = 60.0
"""Seconds after which Status refreshes the `info` in the background."""

PING = "ping Docker"
_READ = "read Docker's info"

CAP_SYS_RESOURCE = 24
"""Number of the capability to lower an OOM score (capabilities(7))."""


ROOTLESS = (
    "Docker is rootless: pods cannot have the node's control groups, volumes and networks there. Name the socket of a "
    "Docker that runs as root in docker_endpoint"
)


def is_rootless(info: EngineInfo) -> bool:
    """Return whether dockerd runs without root, in its own user and network namespaces."""
    return "name=rootless" in (info.security_options or ())


class Kept(Protocol):
    """Docker's last known version and cgroup driver, which survive a restart of the server; empty at first."""

    @property
    def server_version(self) -> str:
        """Return Docker's version."""
        ...

    @property
    def cgroup_driver(self) -> str:
        """Return Docker's cgroup driver."""
        ...

    def keep(self, *, server_version: str, cgroup_driver: str) -> None:
        """Store new values."""
        ...


class EngineFacts:
    """The Engine's cached `info`, its health check, and the lowest OOM score that it can set. Thread-safe.

    `info` takes Docker tens of milliseconds, so RunPodSandbox must not request it each time. The Status RPC, which the
    kubelet calls every few seconds, keeps the cache fresh.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        restrict_oom_score_adj: RestrictOomScoreAdj,
        kept: Kept | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`kept` stores version and cgroup driver across restarts of the server; None stores nothing."""
        self._engine = engine
        self._proc = proc
        self._restrict = restrict_oom_score_adj
        self._kept = kept
        self._lock = threading.Lock()
        self._info: EngineInfo | None = None
        self._read_at = 0.0
        self._daemon = 0
        """The number of calls of `refresh`; each may mean a new daemon."""
        self._described = 0
        """The value of `_daemon` when `_info` was requested."""
        self._oom_floor: int | None = None
        self._pings: Background[None] = Background(self._ping, name="docker-ping")
        self._info_reads: Background[EngineInfo] = Background(self._read, name="docker-info")

    def info(self, *, max_age: float | None = None) -> EngineInfo:
        """Return the Engine's `info`, at most `max_age` seconds old; None accepts any age.

        Raise the Engine's errors, and DeadlineExceeded after INFO_SECONDS.
        """
        info = self._info
        if info is not None and (max_age is None or self._age() <= max_age):
            return info
        return self._read()

    @property
    def last_info(self) -> EngineInfo | None:
        """The last `info`, without a call to Docker; None before the first."""
        return self._info

    def check_answers(self) -> None:
        """Check that the Engine answers within ANSWER_SECONDS; concurrent callers share a ping.

        Raise a ShimError that names the unanswered or refused call. Once an `info` was read, a later `info` that hangs
        is not an error: Engine 20.10 blocks it for 15 to 25 s while a pull cannot resolve the name of a registry.
        """
        end = time.monotonic() + ANSWER_SECONDS
        if time.monotonic() - self._engine.answered_at > RECENT_SECONDS:
            self._pings.join(what=PING)  # it raises after ANSWER_SECONDS
        if self._info is None:
            with answered_within(end - time.monotonic(), what=_READ):
                self._info_reads.join(what=_READ)
        elif self._is_outdated or self._age() > INFO_AGE:
            self._info_reads.begin()

    def refresh(self) -> None:
        """Start to read `info` again, because the Engine may be another daemon now.

        Calls that need a fact wait FALLBACK_SECONDS for it, and then use the earlier fact.
        """
        with self._lock:
            self._daemon += 1
            self._oom_floor = None
        try:
            self._info_reads.begin()
        except ShimError as error:
            log.debug("cannot read Docker's info yet", error=error)

    def server_version(self) -> str:
        """Return the Engine's version, or its last known version if it does not answer.

        Raise Unavailable if it has never answered.
        """
        return self._fact("version", lambda known: known.server_version)

    def cgroup_driver(self) -> str:
        """Return the Engine's cgroup driver, as `server_version` does."""
        return self._fact("cgroup driver", lambda known: known.cgroup_driver)

    @property
    def _is_outdated(self) -> bool:
        return self._described != self._daemon

    def _fact(self, what: str, choose: Callable[[EngineInfo | Kept], str]) -> str:
        """Return a fact about the current daemon, or the last known fact after FALLBACK_SECONDS."""
        info = self._info
        if info is not None and not self._is_outdated:
            return choose(info)
        known = info or self._kept
        fallback = choose(known) if known is not None else ""
        try:
            with answered_within(FALLBACK_SECONDS if fallback else ANSWER_SECONDS, what=_READ):
                return choose(self._info_reads.join(what=_READ))
        except FailedPrecondition:
            raise
        except ShimError as error:
            deadline.current().check(_READ)
            if fallback:
                log.debug("using last known fact about Docker", what=what, kept=fallback, error=str(error))
                return fallback
            raise Unavailable(
                f"Docker's {what} is unknown, and Docker has never answered this server: {error}; "
                "start Docker (systemctl start docker), or see journalctl --unit docker"
            ) from error

    def _age(self) -> float:
        return time.monotonic() - self._read_at

    def _ping(self) -> None:
        with answered_within(ANSWER_SECONDS, what=PING):
            self._engine.ping()

    def _read(self) -> EngineInfo:
        asked_at, daemon = time.monotonic(), self._daemon
        with answered_within(INFO_SECONDS, what=_READ):
            info = self._engine.info()
        if is_rootless(info):
            self._info = None  # with an earlier daemon's `info`, Status would report ready
            raise FailedPrecondition(ROOTLESS)
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
        """Return the runtimes by name. Read `info` again if `wanted` is missing, because a reload can add runtimes."""
        runtimes = self.info().runtimes or {}
        if wanted and wanted not in runtimes:
            runtimes = self.info(max_age=0).runtimes or {}
        return runtimes

    @property
    def systemd_cgroups(self) -> bool:
        """Whether Docker places containers in systemd slices."""
        return self.cgroup_driver() == "systemd"

    def possible_oom_score_adj(self, wanted: int) -> int:
        """Return `wanted`, raised to the lowest score that Docker can set (setting restrict_oom_score_adj).

        Without CAP_SYS_RESOURCE Docker cannot set a score below its own, and runc fails with an error that does not
        name the cause.
        """
        with self._lock:
            if self._oom_floor is None:
                self._oom_floor = self._find_oom_floor()
            return max(wanted, self._oom_floor)

    def _find_oom_floor(self) -> int:
        if self._restrict == "false":
            return -1000
        # The limits of dockerd apply. With systemd's socket activation the peer is init, whose bounding set dockerd has
        # inherited.
        daemon = self._proc / str(self._engine.daemon_pid() or "self")
        if not daemon.exists():
            daemon = self._proc / "self"  # dockerd is in another pid namespace: assume the limits of this process
        if self._restrict == "auto" and may_lower_oom_scores(daemon):
            return -1000
        floor = int((daemon / "oom_score_adj").read_bytes())
        log.warning("Docker may not lower OOM scores on this machine", lowest=floor)
        return floor


def may_lower_oom_scores(process: Path) -> bool:
    """Return whether a process (`/proc/<pid>`) and its children may lower an OOM score.

    The kernel requires the capability in the initial user namespace. In another user namespace, for example on a
    rootless node, the bounding set is full but has no effect.
    """
    return _has_capability(process / "status", CAP_SYS_RESOURCE) and _maps_every_user(process / "uid_map")


def _has_capability(status: Path, bit: int) -> bool:
    """Return whether the bounding set in a /proc/<pid>/status has the capability."""
    return bool(int(value_of(status.read_bytes(), b"CapBnd") or b"0", 16) >> bit & 1)


def _maps_every_user(uid_map: Path) -> bool:
    """Return whether a /proc/<pid>/uid_map is of the initial user namespace, or missing, without kernel support."""
    try:
        return uid_map.read_bytes().split() == [b"0", b"0", b"4294967295"]
    except FileNotFoundError:
        return True
