"""Maintains the nftables rule that keeps pods from the node's loopback addresses."""

import structlog

from shim.domain.errors import ShimError
from shim.netns.loopback_guard import has_guard, install_guard, remove_guard

CHECK_SECONDS = 2.0
"""Seconds between two checks, which cost some microseconds each: `nft flush ruleset` removes the rule."""

log = structlog.get_logger(__name__)


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
