"""Measures the disk usage of images, by layer.

A layer never changes. So the server walks the whole store once, and later only new layers. Docker's own figure
(`/system/df`) is the sum of the same layers. But it has no inodes, and with the containerd image store it omits the
compressed blobs of pulls. An Engine before API 1.42 also walks the layers of all containers and all volumes for it.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from shim.dockerd.image_store import is_containerd_store, is_measurable, store_parts, store_root
from shim.dockerd.overlay import upper_directories
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from shim.stats.disk import Sum
from shim.stats_cache import StoreUsage

PERIOD = 30.0
"""Seconds between two listings of the layers."""
_PROC = Path("/proc")

log = structlog.get_logger(__name__)


class StoreMeter:
    """Selects the next part of the store to measure, and adds up the results. Not thread-safe."""

    def __init__(self, rt: Runtime, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rt = rt
        self._clock = clock
        self._due = clock()
        self._waiting: deque[tuple[str, Path]] = deque()
        self._measured: dict[str, Sum] = {}
        self._root = Path()
        self._complaint = ""

    def next_part(self) -> tuple[str, Path] | None:
        """Return name and directory of a part that has not been measured; None if no part is due."""
        if not self._waiting and self._clock() >= self._due:
            self._due = self._clock() + PERIOD
            try:
                self._find_parts()
            except OSError as error:
                self._complain(str(error))
            except ShimError as error:
                log.debug("cannot measure image store yet", error=error)
        return self._waiting.popleft() if self._waiting else None

    def note(self, name: str, total: Sum) -> None:
        """Record the measurement of a part."""
        self._measured[name] = total
        if not self._waiting:
            self._publish()

    def _find_parts(self) -> None:
        """List the parts of the store, and forget parts that are gone."""
        rt, info = self._rt, self._rt.facts.info()
        root = store_root(info, pids=(each.state.pid for each in rt.view.sandboxes() if each.state.running))
        if root != self._root:
            self._root, self._measured, rt.stats_cache.images = root, {}, None
        if rt.stats_cache.images is None or not rt.stats_cache.images.is_measured:
            rt.stats_cache.images = _of_file_system(root)
        if not is_measurable(info):
            return
        in_use = upper_directories(_PROC / str(rt.engine.daemon_pid() or "self")) if is_containerd_store(info) else ()
        parts = store_parts(info, root, known=self._measured, in_use=in_use)
        self._measured = {name: total for name, total in self._measured.items() if name in parts}
        self._waiting.extend((name, part) for name, part in parts.items() if part and name not in self._measured)
        if not self._waiting:
            self._publish()

    def _publish(self) -> None:
        self._complaint = ""
        self._rt.stats_cache.images = StoreUsage(
            at=time.time_ns(),
            root=self._root,
            used_bytes=sum(total.used_bytes for total in self._measured.values()),
            inodes=sum(total.inodes for total in self._measured.values()),
            is_measured=True,
        )

    def _complain(self, complaint: str) -> None:
        # Log each failure once, not every PERIOD.
        if complaint != self._complaint:
            log.warning("failed to measure image store", error=complaint)
        self._complaint = complaint


def _of_file_system(root: Path) -> StoreUsage:
    found = os.statvfs(root)
    return StoreUsage(
        at=time.time_ns(),
        root=root,
        used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
        inodes=found.f_files - found.f_ffree,
        is_measured=False,
    )
