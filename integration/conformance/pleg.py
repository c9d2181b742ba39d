"""Whether a kubelet with the gate EventedPLEG uses events, or has fallen back to listing every second."""

import re
from collections.abc import Callable
from dataclasses import dataclass

MOST_ERRORS = 4
"""A kubelet falls back to lists for good after the fifth failure of its stream, whatever the reason."""
_COUNT = re.compile(r"^kubelet_evented_pleg_connection_(success|error)_count (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Streams:
    """The kubelet's event streams since its start."""

    opened: int
    failed: int

    @property
    def in_use(self) -> bool:
        """Whether the kubelet uses events."""
        return self.opened > 0 and self.failed <= MOST_ERRORS


def streams(kubectl: Callable[..., str]) -> Streams:
    """Read the counts from the kubelet's metrics."""
    figures = dict(_COUNT.findall(kubectl("get", "--raw", "/api/v1/nodes/node/proxy/metrics")))
    return Streams(opened=int(float(figures.get("success", 0))), failed=int(float(figures.get("error", 0))))
