"""Cases of Kubernetes' node suite that are expected to fail, with reasons."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from integration.conformance.results import Case, Run


@dataclass(frozen=True, slots=True)
class Expected:
    """Cases that are expected to fail: those whose name matches `name`, on `engines` or on all."""

    name: str
    reason: str
    engines: Sequence[str] = ()
    sometimes: bool = False
    """Whether they may also pass."""

    def is_certain_of(self, case: Case, *, engine: str) -> bool:
        """Whether the case never passes."""
        return not self.sometimes and self.covers(case, engine=engine)

    def covers(self, case: Case, *, engine: str) -> bool:
        """Whether the case is one of them."""
        return (not self.engines or engine in self.engines) and re.search(self.name, case.name) is not None


SKIPPED = {
    "E2E runtime class handler": "reads containerd's configuration",
    "an earlier spec in an ordered container failed": "an earlier case failed",
    "until DialFromNode supports SCTP": "the suite cannot dial SCTP",
    "PodAndContainerStatsFromCRI feature gate is enabled": "tests cAdvisor's metrics",
    "without project quota enabled": "no project quotas",
    "getsubids binary not found": "no getsubids",
}
"""Short reasons by parts of the suite's own."""

EXPECTED = (
    Expected("PrivilegedPod .* should enable privileged commands", "the kernel has no dummy devices"),
    Expected("Networking Granular Checks: Pods .*: sctp", "the kernel has no SCTP"),
    Expected(
        "Containers Lifecycle .* should start second restartable init container before third init container",
        "compares times a few ms apart",
        sometimes=True,
    ),
    Expected("ImageCredentialProvider", "pulls an image of a public registry"),
    Expected("ImageID .* should be set to the manifest digest", "pulls an image of a public registry"),
    Expected("ImageGarbageCollect", "pulls an image of a public registry"),
    Expected("LocalStorageCapacityIsolationFSQuotaMonitoring", "needs an image with Perl"),
    Expected(
        "read only busybox container should not write to root filesystem",
        "the substitute's shell words errors differently",
    ),
)


def judged(cases: Iterable[Case], *, engine: str, table: Sequence[Expected] = EXPECTED) -> tuple[Case, ...]:
    """Return the cases with those that failed as expected in the state `expected`, with the reason of their entry."""
    return tuple(_judged(case, engine=engine, table=table) for case in cases)


def _judged(case: Case, *, engine: str, table: Sequence[Expected]) -> Case:
    found = next((entry for entry in table if entry.covers(case, engine=engine)), None)
    if case.state != "failed" or found is None:
        return case
    return Case(case.name, "expected", case.seconds, found.reason)


def stale(run: Run, *, table: Sequence[Expected] = EXPECTED) -> list[str]:
    """Return a line for each case of the node suite that passed though it was expected to fail."""
    return [
        f"{case.name} passes on engine {run.engine}: remove it from the entry {entry.name!r} of expected failures"
        for case in run.cases
        for entry in table
        if run.suite == "node-e2e" and case.state == "passed" and entry.is_certain_of(case, engine=run.engine)
    ]
