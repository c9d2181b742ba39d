"""The schedule that a seed gives. Pure: the same seed gives the same schedule; only the durations of RPCs differ."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal

Kind = Literal["network", "host", "volume", "job"]
KINDS: tuple[Kind, ...] = ("network", "network", "host", "volume", "job")
"""Kinds of pods by frequency: most pods use the pod network."""

AT_ONCE = 8
"""Pods that are added or removed in a round."""
MOST_PODS = 12
"""Bound on the pods that exist after a round."""
MOST_FAULTS = 3
"""Bound on the faults of a round; no two hit the same part of the node."""
IDS = 1 << 16
"""How many ids a kubelet gives a pod in a user namespace."""
_OWN_USERS = 1 / 3
"""Share of the pods that are in user namespaces."""
_BEGIN_SECONDS = 3.0
"""Faults start within this time of the start of the round."""


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod to add, `at` seconds after the start of the round."""

    name: str
    kind: Kind
    at: float = 0.0
    first_id: int = 0
    """Host id of its root, for a user namespace that no other pod shares; 0 for the host's user namespace."""


@dataclass(frozen=True, slots=True)
class OldPod:
    """A pod to remove, `at` seconds after the start of the round."""

    name: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A fault: its name, its start and duration in seconds, and a seed for its random choices."""

    fault: str
    at: float
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.fault} {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """A round."""

    number: int
    made: tuple[NewPod, ...]
    removed: tuple[OldPod, ...]
    steps: tuple[Step, ...]


def plans(seed: int, *, faults: Sequence[str], longest: float) -> Iterator[Plan]:
    """Yield rounds without end; a fault lasts at most `longest` seconds.

    The word before the space in a name of `faults` is the part of the node that the fault hits.
    """
    random = Random(seed)
    present: list[str] = []
    ids = count(IDS, IDS)
    number = 0
    while True:
        number += 1
        steps = _steps(random, faults=faults, longest=longest)
        last = max(step.at + step.seconds for step in steps)
        gone = random.sample(present, random.randint(0, min(AT_ONCE - 1, len(present))))
        room = min(AT_ONCE - len(gone), MOST_PODS - len(present) + len(gone))
        names = [f"{seed}-{number}-{each}" for each in range(random.randint(min(1, room), room))]
        made = tuple(_new_pod(random, name, ids=ids, last=last) for name in names)
        present = [name for name in present if name not in gone] + names
        yield Plan(number, made, tuple(OldPod(name, random.uniform(0, last)) for name in gone), steps)


def _new_pod(random: Random, name: str, *, ids: Iterator[int], last: float) -> NewPod:
    kind, at = random.choice(KINDS), random.uniform(0, last)
    return NewPod(name, kind, at, first_id=next(ids) if random.random() < _OWN_USERS else 0)


def _steps(random: Random, *, faults: Sequence[str], longest: float) -> tuple[Step, ...]:
    chosen: dict[str, str] = {}
    for fault in random.sample(faults, min(len(faults), random.randint(1, MOST_FAULTS))):
        chosen.setdefault(fault.partition(" ")[0], fault)
    return tuple(
        Step(
            fault,
            at=round(random.uniform(0, min(_BEGIN_SECONDS, longest)), 2),
            seconds=round(random.uniform(longest / 10, longest), 1),
            seed=random.getrandbits(32),
        )
        for fault in chosen.values()
    )
