"""Keeps the rule in force by which pods get no answer from loopback addresses of the node."""

import structlog

from shim.domain.errors import ShimError
from shim.netns.loopback_guard import has_guard, install_guard, remove_guard

CHECK_SECONDS = 2.0
"""Until the rule is looked for again, which takes the kernel some microseconds: `nft flush ruleset` takes it away."""

log = structlog.get_logger(__name__)


class LoopbackGuard:
    """The rule, as the server keeps it. For one thread at a time."""

    def __init__(self) -> None:
        self._is_installed = False
        self._problem = ""

    def keep(self) -> None:
        """Have the rule there. The first time it is replaced, since that of another version may be another one.

        A failure is logged once: pods run, and their host ports work.
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
        """Take the rule away."""
        try:
            remove_guard()
        except ShimError as error:
            log.warning("failed to remove loopback rule", error=error)
