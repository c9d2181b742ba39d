"""Whether a kubelet with the gate EventedPLEG takes events, or has gone back to listing everything each second."""

import re
from collections.abc import Callable
from dataclasses import dataclass

MOST_ERRORS = 4
"""A kubelet lists after the fifth of its streams that failed, whatever the reason, until it is started again."""
_COUNT = re.compile(r"^kubelet_evented_pleg_connection_(success|error)_count (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of events since the kubelet was started."""

    opened: int
    failed: int

    @property
    def in_use(self) -> bool:
        """Whether the kubelet takes events."""
        return self.opened > 0 and self.failed <= MOST_ERRORS


def streams(kubectl: Callable[..., str]) -> Streams:
    """Read them from the kubelet's metrics."""
    figures = dict(_COUNT.findall(kubectl("get", "--raw", "/api/v1/nodes/node/proxy/metrics")))
    return Streams(opened=int(float(figures.get("success", 0))), failed=int(float(figures.get("error", 0))))
