"""Plans the runs that the options ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from integration.conformance.binaries import CRITEST, NODE, NODE_E2E, Binaries
from integration.conformance.node_e2e.groups import Group

Suite = Literal["critest", "user-namespaces", "kubelet", "churn", "node-e2e"]
SUITES: tuple[Suite, ...] = ("critest", "user-namespaces", "kubelet", "churn", "node-e2e")
DEFAULT_SUITES: tuple[Suite, ...] = ("critest", "user-namespaces", "kubelet")
"""The suites churn and node-e2e take hours, so they run only if named."""
OF_CRITEST: tuple[Suite, ...] = ("critest", "user-namespaces")
"""Suites of the program critest."""


def program_of(suite: Suite) -> str:
    """Return the name of the program whose version a run has."""
    return "critest" if suite in OF_CRITEST else "kubelet"


_NEEDS: dict[Suite, Sequence[str]] = {
    "critest": CRITEST,
    "user-namespaces": CRITEST,
    "kubelet": NODE,
    "churn": NODE,
    "node-e2e": NODE_E2E,
}

DEFAULT_GATES = ("", "EventedPLEG=true", "PodAndContainerStatsFromCRI=true")
"""Feature gates of the kubelets: the defaults, and the gates that change how a kubelet uses the server."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned run."""

    suite: Suite
    engine: str
    gates: str = ""
    group: str = ""
    """The group of the suite node-e2e."""

    def __str__(self) -> str:
        words = [self.suite, *([self.group] if self.group else ()), f"on engine {self.engine}"]
        return " ".join([*words, f"with {self.gates}"] if self.gates else words)


@dataclass(frozen=True, slots=True)
class Plan:
    """All planned runs, and the reason for each suite that is left out."""

    runs: tuple[Planned, ...]
    left_out: tuple[str, ...]


def plan(
    binaries: Binaries,
    *,
    engines: Sequence[str],
    suites: Sequence[Suite],
    gates: Sequence[str],
    groups: Sequence[Group] = (),
) -> Plan:
    """Plan each suite on each engine, each kubelet suite with each set of gates, and each group of node-e2e."""
    runs: list[Planned] = []
    left_out = []
    for suite in suites:
        missing = binaries.missing(_NEEDS[suite])
        if missing:
            left_out.append(f"{suite} is not run: {binaries.explain(missing)}")
            continue
        if suite == "node-e2e":
            runs += [Planned(suite, engine, group.gates, group.name) for engine in engines for group in groups]
            continue
        variants = ("",) if suite in OF_CRITEST else gates
        runs += [Planned(suite, engine, variant) for engine in engines for variant in variants]
    return Plan(tuple(runs), tuple(left_out))
