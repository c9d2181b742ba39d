"""Maintains the nftables rule that keeps pods from the node's loopback addresses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from shim.daemon.background import background
from shim.domain.errors import ShimError
from shim.netns.loopback_guard import has_guard, install_guard, remove_guard
from shim.runtime import Runtime

_CHECK_SECONDS = 2.0
"""Seconds between two checks, which cost some microseconds each: `nft flush ruleset` removes the rule."""

log = structlog.get_logger(__name__)


@contextmanager
def guarding_loopback(rt: Runtime) -> Iterator[None]:
    """Keep pods from the node's loopback addresses inside the block, and after it while pods are left."""
    if rt.config.network_plugin == "none":
        yield
        return
    guard = LoopbackGuard()
    guard.keep()

    def keep(stopping: threading.Event) -> None:
        while not stopping.wait(_CHECK_SECONDS):
            guard.keep()

    with background(keep, name="loopback-guard"):
        yield
    if not (rt.checkpoints.all() or rt.checkpoints.corrupt()):
        guard.remove()


class LoopbackGuard:
    """The rule and its state. Not thread-safe."""

    def __init__(self) -> None:
        self._is_installed = False
        self._problem = ""

    def keep(self) -> None:
        """Install the rule if it is missing. The first call replaces it, because another version's rule may differ.

        A failure is logged once and not raised: pods and host ports work without the rule.
        """
        try:
            if not self._is_installed:
                install_guard()
                self._is_installed = True
            elif not has_guard():
                install_guard()
                log.info("loopback rule was removed by others, added again")
            problem = ""
        except ShimError as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("failed to keep pods from loopback addresses of the node", error=problem)
        self._problem = problem

    def remove(self) -> None:
        """Remove the rule."""
        try:
            remove_guard()
        except ShimError as error:
            log.warning("failed to remove loopback rule", error=error)
