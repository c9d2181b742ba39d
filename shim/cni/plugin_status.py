"""The status of a network's plugins, by the verb STATUS.

Source: CNI specification 1.1.0, section 2 (STATUS: check plugin status).
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from shim.cni.conf import NetworkConfig
from shim.cni.plugin import UNKNOWN_VERB, Call, PluginError, run_plugin
from shim.cni.programs import FindPlugins, find_plugins
from shim.domain.errors import ShimError

log = structlog.get_logger(__name__)

FRESH_SECONDS = 10.0
"""A status is queried again after this time, but only when a client asks for readiness."""
ANSWER_SECONDS = 20.0
"""Limit of STATUS."""

_FIRST_WITH_STATUS = "1.1.0"
_NOT_AVAILABLE = (50, 51)
"""Error codes of a plugin that cannot run ADD; with 51, running pods may lack connectivity too."""


def knows_status(network: NetworkConfig) -> bool:
    """Return whether the list has a version with STATUS."""
    return bool(network.conflist["cniVersion"] == _FIRST_WITH_STATUS)


def ask_status(network: NetworkConfig, *, bin_dirs: Sequence[Path], find: FindPlugins = find_plugins) -> str:
    """Run STATUS of each plugin. Return the error of the first unavailable plugin, or an empty text.

    A plugin that cannot be started or does not end in time is unavailable too. Other errors of a plugin are only
    logged, because they say nothing about its availability.
    """
    for plugin in network.conflist["plugins"]:
        config = {**plugin, "name": network.name, "cniVersion": network.conflist["cniVersion"]}
        config.pop("capabilities", None)
        try:
            binary = find([plugin["type"]], bin_dirs).get(plugin["type"])
            if binary is not None:
                run_plugin(Call(binary=binary, verb="STATUS", bin_dirs=bin_dirs), config=config, timeout=ANSWER_SECONDS)
        except PluginError as error:
            if error.code in _NOT_AVAILABLE:
                return str(error)
            if error.code == UNKNOWN_VERB:
                continue
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
    """Caches the last status of the plugins of the network in force. Thread-safe.

    Plugins run in a separate thread, so that a hung plugin does not delay an answer about readiness.
    """

    def __init__(
        self, bin_dirs: Sequence[Path], *, find: FindPlugins = find_plugins, fresh: float = FRESH_SECONDS
    ) -> None:
        self._bin_dirs = tuple(bin_dirs)
        self._find, self._fresh = find, fresh
        self._changed = threading.Condition()
        self._wanted: NetworkConfig | None = None
        self._asking: NetworkConfig | None = None
        self._answer: _Answer | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop, without waiting for a running plugin."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def problem(self, network: NetworkConfig, *, seconds: float) -> str:
        """Return the last known reason why the plugins of a network are unavailable; empty if they are available.

        Only the first call for a network waits for the plugins, for at most `seconds`.
        """
        if not knows_status(network):
            return ""
        with self._changed:
            if self._is_old(network) and network != self._asking:
                self._ask(network)
            self._changed.wait_for(lambda: self._last_problem(network) is not None or self._stopped, seconds)
            answer = self._last_problem(network)
        return "its plugins have not answered STATUS yet" if answer is None else answer

    def _last_problem(self, network: NetworkConfig) -> str | None:
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
        """Query the wanted network; end when no network is wanted."""
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
            return ask_status(network, bin_dirs=self._bin_dirs, find=self._find)
        except Exception:  # otherwise the node would never become ready
            log.exception("failed to get STATUS of CNI plugins", network=network.name)
            return ""


def _log(before: _Answer | None, now: _Answer) -> None:
    was = before.problem if before is not None and before.network == now.network else ""
    if now.problem and now.problem != was:
        log.warning("CNI plugin not available", network=now.network.name, error=now.problem)
    elif was and not now.problem:
        log.info("CNI plugins available again", network=now.network.name)
