"""The runs that the options ask for, and what is left out of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from integration.conformance.binaries import CRITEST, NODE, Binaries

Suite = Literal["critest", "kubelet", "churn"]
SUITES: tuple[Suite, ...] = ("critest", "kubelet", "churn")
DEFAULT_SUITES: tuple[Suite, ...] = ("critest", "kubelet")
"""Without pods that crash for an hour: they run when they are named."""
_NEEDS: dict[Suite, Sequence[str]] = {"critest": CRITEST, "kubelet": NODE, "churn": NODE}

DEFAULT_GATES = ("", "EventedPLEG=true", "PodAndContainerStatsFromCRI=true")
"""What a kubelet is run with: its defaults, and what changes how it uses the server."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to come."""

    suite: Suite
    engine: str
    gates: str = ""

    def __str__(self) -> str:
        words = [self.suite, f"on engine {self.engine}"]
        return " ".join([*words, f"with {self.gates}"] if self.gates else words)


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs to come, and for each suite that is left out the reason."""

    runs: tuple[Planned, ...]
    left_out: tuple[str, ...]


def plan(binaries: Binaries, *, engines: Sequence[str], suites: Sequence[Suite], gates: Sequence[str]) -> Plan:
    """Plan each suite on each engine, and those of a kubelet with each set of gates."""
    runs: list[Planned] = []
    left_out = []
    for suite in suites:
        missing = binaries.missing(_NEEDS[suite])
        if missing:
            left_out.append(f"{suite} is not run: {binaries.explain(missing)}")
            continue
        variants = ("",) if suite == "critest" else gates
        runs += [Planned(suite, engine, variant) for engine in engines for variant in variants]
    return Plan(tuple(runs), tuple(left_out))
