"""Kills leaked containerd-shims of this server's containers, at the start and every ten minutes."""

import threading
from pathlib import Path

import structlog

from shim import pod
from shim.base import deadline
from shim.base.process import ProcessHandle
from shim.dockerd.leaked_shims import LeakedShim, Maker, leaked_shims
from shim.domain.errors import ShimError
from shim.runtime import Runtime

INTERVAL = 600.0
"""Seconds between two searches."""
AGAIN = 5.0
"""Seconds until a found leak is verified. A containerd-shim outlives its last container for a moment, on a busy node
for longer: if it is gone by then, it was not a leak."""
_DOCKER_SECONDS = 30.0

log = structlog.get_logger(__name__)


class ShimLeaks:
    """Finds containerd-shims whose containers Docker has removed, and kills ours. The counts are thread-safe."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._seen: set[LeakedShim] = set()
        self._left: set[LeakedShim] = set()
        self.ended = 0
        """Number of shims that were killed."""

    @property
    def left(self) -> int:
        """Number of leaked shims that must not be killed: of other owners, or still in use by other containers."""
        return len(self._left)

    def watch(self, stopping: threading.Event) -> None:
        """Search until the server stops."""
        while not stopping.wait(AGAIN if self._try_search() else INTERVAL):
            pass

    def search(self) -> bool:
        """Search once; kill leaks that the last search found too. Return whether to search again soon.

        Raise Unavailable or DeadlineExceeded if Docker does not answer.
        """
        with deadline.bound(_DOCKER_SECONDS):
            found = set(leaked_shims(self._containers, maker=maker_of(self._rt)))
        twice = found & self._seen
        left = {leak for leak in twice if not (leak.ours and not leak.serves_others and self._end(leak))}
        for leak in left - self._left:
            log.warning(
                "containerd-shim left of removed containers",
                pid=leak.pid,
                containers=leak.containers,
                ours=leak.ours,
                serves_others=leak.serves_others,
            )
        self._left, self._seen = left, found
        return found != twice

    def _try_search(self) -> bool:
        """Search; return whether to search again soon."""
        try:
            return self.search()
        except (OSError, ShimError) as error:  # OSError: no descriptor is free
            log.debug("cannot search for leaked containerd-shims", error=error)
            return True

    def _containers(self) -> set[str]:
        return {container.id for container in self._rt.engine.list_containers()}

    def _end(self, leak: LeakedShim) -> bool:
        """Kill a shim if it is still a leak. Return False if that failed.

        containerd then kills the processes of its tasks and removes their directories.
        """
        try:
            with ProcessHandle(leak.pid) as shim:
                # Check again, now that the pid cannot be reused.
                if leak not in leaked_shims(self._containers, maker=maker_of(self._rt)):
                    return True
                shim.kill()
        except ProcessLookupError:
            return True
        except OSError as error:
            log.warning("failed to end leaked containerd-shim", pid=leak.pid, error=error)
            return False
        self.ended += 1
        log.warning("ended leaked containerd-shim", pid=leak.pid, containers=leak.containers)
        return True


def maker_of(rt: Runtime) -> Maker:
    """Return how containerd's records identify the containers of this server."""
    return Maker(docker_root=Path(rt.facts.info().docker_root_dir), resolv_conf=pod.resolv_conf_directory(rt.config))
