"""What the plugins of a network say of themselves: VERSION and STATUS.

Source: CNI specification 1.1.0, section 2 (STATUS: check plugin status, VERSION: probe plugin version support).
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from shim.cni.conf import SUPPORTED_VERSIONS, NetworkConfig
from shim.cni.plugin import Call, PluginError, Verb, run_plugin
from shim.cni.programs import FindPlugins, find_plugins
from shim.domain.errors import ShimError

log = structlog.get_logger(__name__)

FRESH_SECONDS = 10.0
"""How old what plugins say may be before they are asked again. They are asked only while readiness is asked for."""
ANSWER_SECONDS = 20.0
"""How long a plugin may take for VERSION or STATUS."""

_FIRST_WITH_STATUS = "1.1.0"
_NOT_AVAILABLE = (50, 51)
"""Error codes of a plugin that cannot do ADD; with 51, running pods may be cut off too."""


class _Versions(msgspec.Struct):
    """Answer to VERSION."""

    supportedVersions: list[str] = []  # noqa: N815 - name of the specification


class PluginVersions:
    """Asks each binary once which versions it supports. Thread-safe."""

    def __init__(self, bin_dirs: Sequence[Path]) -> None:
        self._bin_dirs = tuple(bin_dirs)
        self._known: dict[Path, tuple[tuple[int, int, int], tuple[str, ...]]] = {}

    def of(self, plugin: Path) -> tuple[str, ...]:
        """Return the versions that a binary lists; none where it does not answer.

        A binary that was replaced, by another time of change, size or inode, is asked again.
        """
        try:
            status = plugin.stat()
        except OSError:
            return ()
        identity = (status.st_mtime_ns, status.st_size, status.st_ino)
        known = self._known.get(plugin)
        if known is not None and known[0] == identity:
            return known[1]
        versions = self._ask_plugin(plugin)
        self._known[plugin] = identity, versions
        return versions

    def _ask_plugin(self, plugin: Path) -> tuple[str, ...]:
        config = {"cniVersion": SUPPORTED_VERSIONS[-1]}
        try:
            answer = run_plugin(call_of(plugin, "VERSION", self._bin_dirs), config=config, timeout=ANSWER_SECONDS)
            return tuple(msgspec.json.decode(answer, type=_Versions).supportedVersions)
        except (ShimError, ValueError, RecursionError) as error:
            log.warning("CNI plugin failed VERSION", plugin=str(plugin), error=str(error))
            return ()


def call_of(plugin: Path, verb: Verb, bin_dirs: Sequence[Path]) -> Call:
    """Return the parameters of a run that is about no pod."""
    return Call(binary=plugin, verb=verb, container_id="", netns="", ifname="", args=(), bin_dirs=bin_dirs)


def knows_status(network: NetworkConfig) -> bool:
    """Return whether the list is of a version in which plugins are asked for their status."""
    return bool(network.conflist["cniVersion"] == _FIRST_WITH_STATUS)


def ask_status(
    network: NetworkConfig, *, versions: PluginVersions, bin_dirs: Sequence[Path], find: FindPlugins = find_plugins
) -> str:
    """Ask each plugin of a list that knows STATUS; returns what the first one says that is not available, or nothing.

    A plugin that has no end is not available either. Other failures are no statement of the plugin about itself, and
    are logged.
    """
    for plugin in network.conflist["plugins"]:
        config = {**plugin, "name": network.name, "cniVersion": network.conflist["cniVersion"]}
        config.pop("capabilities", None)
        try:
            binary = find([plugin["type"]], bin_dirs).get(plugin["type"])
            if binary is not None and _FIRST_WITH_STATUS in versions.of(binary):
                run_plugin(call_of(binary, "STATUS", bin_dirs), config=config, timeout=ANSWER_SECONDS)
        except PluginError as error:
            if error.code in _NOT_AVAILABLE:
                return str(error)
            log.warning("CNI plugin failed STATUS", plugin=plugin["type"], error=str(error))
        except ShimError as error:
            return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class _Answer:
    network: NetworkConfig
    problem: str
    at: float


class StatusWatch:
    """Knows what the plugins of the network in force have said last. Thread-safe.

    They are run in a thread of their own, so that no question about readiness waits for a plugin that hangs.
    """

    def __init__(
        self, bin_dirs: Sequence[Path], *, find: FindPlugins = find_plugins, fresh: float = FRESH_SECONDS
    ) -> None:
        self._bin_dirs = tuple(bin_dirs)
        self._find, self._fresh = find, fresh
        self._versions = PluginVersions(bin_dirs)
        self._changed = threading.Condition()
        self._wanted: NetworkConfig | None = None
        self._asking: NetworkConfig | None = None
        self._answer: _Answer | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def stop(self) -> None:
        """End asking, without waiting for a plugin that is being asked."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def problem(self, network: NetworkConfig, *, seconds: float) -> str:
        """Return why the plugins of a network cannot make pods, as they have said last; empty when they can.

        Only the first question about a network waits for them, and not longer than that.
        """
        if not knows_status(network):
            return ""
        with self._changed:
            if self._is_old(network) and network != self._asking:
                self._ask(network)
            self._changed.wait_for(lambda: self._said(network) is not None or self._stopped, seconds)
            answer = self._said(network)
        return "its plugins have not answered STATUS yet" if answer is None else answer

    def _said(self, network: NetworkConfig) -> str | None:
        answer = self._answer
        return answer.problem if answer is not None and answer.network == network else None

    def _is_old(self, network: NetworkConfig) -> bool:
        answer = self._answer
        return answer is None or answer.network != network or time.monotonic() - answer.at > self._fresh

    def _ask(self, network: NetworkConfig) -> None:
        self._wanted = network
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="cni-status", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Ask for what is wanted, and end when nothing is."""
        while True:
            with self._changed:
                network, self._wanted = self._wanted, None
                self._asking = network
                if network is None or self._stopped:
                    self._thread = None
                    return
            problem = self._ask_plugins(network)
            with self._changed:
                before, self._answer = self._answer, _Answer(network, problem, time.monotonic())
                self._asking = None
                self._changed.notify_all()
            _log(before, self._answer)

    def _ask_plugins(self, network: NetworkConfig) -> str:
        try:
            return ask_status(network, versions=self._versions, bin_dirs=self._bin_dirs, find=self._find)
        except Exception:  # without an answer the node would not be ready for good
            log.exception("failed to get STATUS of CNI plugins", network=network.name)
            return ""


def _log(before: _Answer | None, now: _Answer) -> None:
    was = before.problem if before is not None and before.network == now.network else ""
    if now.problem and now.problem != was:
        log.warning("CNI plugin not available", network=now.network.name, error=now.problem)
    elif was and not now.problem:
        log.info("CNI plugins available again", network=now.network.name)
