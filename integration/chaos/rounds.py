"""Runs the rounds: pods come and go while faults happen, then the invariants are checked."""

import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from integration.chaos.events import Events, event_violations, missing_events
from integration.chaos.faults import inflict, possible
from integration.chaos.invariants import Invariants, sizes
from integration.chaos.kubelet import Calm, Kubelet
from integration.chaos.plan import AT_ONCE, IDS, KINDS, MOST_FAULTS, MOST_PODS, NewPod, Plan, plans
from integration.chaos.pods import ChaosPod, new_pod
from integration.chaos.target import Target, new_target
from integration.cri import Cri, connected
from integration.node.commands import NodeError
from integration.node.isolation import Node, new_home
from integration.pods.user_namespaces import features
from integration.waiting import wait_until

CALM_SECONDS = 180.0
"""Time for all pods to converge after the last fault; RPCs held up by a fault end first."""
TRUE_SECONDS = 120.0
"""Time for all other invariants to become true after convergence."""
_AGAIN_SECONDS = 0.2
_TEST_SECONDS = 30.0

Say = Callable[[str], object]


@dataclass(slots=True)
class Summary:
    """The results of a run; `kept` is the directory of saved logs after a violation."""

    seed: int
    engine: str
    rounds: int = 0
    made: int = 0
    removed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    kept: Path | None = None

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"engine {self.engine}, seed {self.seed}: {self.rounds} rounds, "
            f"{self.made} pods made, {self.removed} removed, {len(self.violations)} violations; faults: {counted}"
        )


def run(
    node: Node, *, engine: str, seed: int, longest: float, go_on: Callable[[int], bool], say: Say, only: str = ""
) -> Summary:
    """Run rounds while `go_on(number of rounds done)`; stops at the first round with a violation.

    A fault lasts at most `longest` seconds; only faults whose names contain `only` occur. Raises NodeError if the node
    cannot be set up.
    """
    summary = Summary(seed, engine)
    home = new_home(f"chaos-{engine}-{seed}")
    with new_target(node, engine, home) as target, connected(target.server.socket) as cri, Events(target) as events:
        names = [name for name in possible(target) if only in name]
        runner = _Runner(target, cri, events, summary, say)
        for plan in plans(seed, faults=names, longest=longest):
            if summary.violations or not go_on(summary.rounds):
                break
            runner.round(plan)
        if not summary.violations:
            runner.end()
    return summary


class _Runner:
    def __init__(self, target: Target, cri: Cri, events: Events, summary: Summary, say: Say) -> None:
        self._target = target
        self._cri = cri
        self._events = events
        self._summary = summary
        self._say = say
        self._began = time.monotonic()
        self._pods: dict[str, ChaosPod] = {}
        self._has_user_namespaces = _has_user_namespaces(cri)
        if not self._has_user_namespaces:
            say("no pod gets a user namespace: this node does not support them")
        self._warm_up()
        self._invariants = Invariants(target, cri)

    def round(self, plan: Plan) -> None:
        """Run a round and print it."""
        summary, began, life = self._summary, time.monotonic(), self._target.life
        there = {each for pod in self._pods.values() for each in pod.ever}
        seen_before = len(self._events.received())
        faults = ", ".join(map(str, plan.steps))
        self._say(f"{self._clock()} round {plan.number}: +{len(plan.made)} -{len(plan.removed)} pods; {faults}")
        removed = [self._pods.pop(pod.name) for pod in plan.removed]
        made = [self._new_pod(each) for each in plan.made]
        found = self._disturbed(plan, made, removed)
        self._pods |= {pod.name: pod for pod in made}
        found += self._settled()
        # This holds however often Docker disconnects: the server keeps the changes for the next subscriber.
        if life == self._target.life and not found:
            found += self._missing_events(there, removed, seen_before, life)
        summary.rounds += 1
        summary.made += len(made)
        summary.removed += len(removed)
        for step in plan.steps:
            summary.faults[step.fault] = summary.faults.get(step.fault, 0) + 1
        self._note(f"round {plan.number}", found)
        took = time.monotonic() - began
        self._say(
            f"{self._clock()}   {took:.0f} s, {len(self._pods)} pods, {len(found)} violations; {sizes(self._target)}"
        )

    def end(self) -> None:
        """Remove all pods, and check that nothing is left."""
        pods = list(self._pods.values())
        self._pods = {}
        found = self._disturbed(Plan(0, (), (), ()), [], pods)
        found += self._settled()
        found += _until_none(self._invariants.final_violations)
        self._summary.removed += len(pods)
        self._note("end", found)
        moved = self._target.moved
        left = f"{len(found)} violations; {sizes(self._target)}"
        self._say(f"{self._clock()} end: all pods removed, {moved} were moved, {left}")

    def _warm_up(self) -> None:
        """Run each kind of pod once, so that shared objects exist before the first snapshot."""
        pods = [
            self._new_pod(NewPod(f"first-{kind}-{first_id}", kind, first_id=first_id))
            for kind in sorted(set(KINDS))
            for first_id in (0, IDS)
        ]
        found = self._disturbed(Plan(0, (), (), ()), pods, []) + self._disturbed(Plan(0, (), (), ()), [], pods)
        if found:
            raise NodeError(f"a pod failed without any fault: {'; '.join(found)}")

    def _new_pod(self, plan: NewPod) -> ChaosPod:
        if not self._has_user_namespaces:
            plan = replace(plan, first_id=0)
        return new_pod(plan, logs=self._target.dirs.logs, volume=self._target.volume.path)

    def _disturbed(self, plan: Plan, made: list[ChaosPod], removed: list[ChaosPod]) -> list[str]:
        """Add and remove pods and keep the others up while the faults happen; return the violations."""
        found: list[str] = []
        calm = Calm(CALM_SECONDS)
        later = {pod.name: pod.at for pod in plan.made} | {pod.name: pod.at for pod in plan.removed}
        kept = list(self._pods.values())
        with ThreadPoolExecutor(MOST_FAULTS) as faulty, ThreadPoolExecutor(AT_ONCE + MOST_PODS) as busy:
            happening = [faulty.submit(inflict, self._target, step) for step in plan.steps]

            def worked(pod: ChaosPod, *, down: bool) -> Future[None]:
                kubelet = Kubelet(self._cri, self._target, pod, found)
                work = kubelet.take_down if down else kubelet.bring_up
                return busy.submit(work, calm, after=0.0 if calm.has_begun else later.get(pod.name, 0.0))

            working = [worked(pod, down=True) for pod in removed] + [worked(pod, down=False) for pod in [*made, *kept]]
            found += _failed_repairs(plan, happening)
            calm.begin()
            _wait(working)
            # A kubelet synchronizes its pods all the time; here once more, after all faults have ended.
            _wait([worked(pod, down=False) for pod in [*kept, *made]])
        return found

    def _settled(self) -> list[str]:
        pods = list(self._pods.values())
        if not (self._target.server.daemon.running and self._target.engine.daemon.running):
            return ["the server or dockerd is not running"]
        found = _until_none(lambda: self._invariants.violations(pods))
        found += _until_none(lambda: self._logs(pods))
        return [*found, *self._invariants.unexpected(), *self._event_violations()]

    def _event_violations(self) -> list[str]:
        return event_violations(self._events.received(), restarted=self._target.restarted_by_hand)

    def _logs(self, pods: list[ChaosPod]) -> list[str]:
        try:
            return self._invariants.log_violations(pods)
        except grpc.RpcError as error:
            return [f"logs cannot be checked: {error}"]

    def _missing_events(self, there: set[str], removed: list[ChaosPod], seen_before: int, life: int) -> list[str]:
        """Return the missing events of a round without a restart of the server."""
        alive = {each for pod in self._pods.values() for each in (*pod.sandboxes, *pod.made)}
        ever = {each for pod in (*self._pods.values(), *removed) for each in pod.ever}

        def missing() -> list[str]:
            seen = self._events.received()
            started = {event.container for event in seen[seen_before:] if event.step == "started"}
            return missing_events(seen, life=life, made=alive - there, gone=(ever - alive) & started)

        return _until_none(missing)

    def _note(self, when: str, found: list[str]) -> None:
        """Print the violations and save the logs now: after such a round the teardown of the node may fail."""
        summary = self._summary
        summary.violations += [f"{when}: {each}" for each in found]
        for each in found:
            self._say(f"VIOLATION, seed {summary.seed}, {when}: {each}")
        if found:
            summary.kept = _save_logs(self._target)
            self._say(f"logs of the server and of dockerd: {summary.kept}")

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:7.1f} s"


def _has_user_namespaces(cri: Cri) -> bool:
    """Return whether the server reports user namespaces, after its check."""
    try:
        wait_until(lambda: features(cri).user_namespaces, _TEST_SECONDS)
    except AssertionError:
        return False
    return True


def _failed_repairs(plan: Plan, happening: list[Future[None]]) -> list[str]:
    """Wait for the faults; return failed repairs, such as a server that did not start."""
    found = []
    for step, fault in zip(plan.steps, happening, strict=True):
        try:
            fault.result()
        except (NodeError, AssertionError) as error:
            found.append(f"after {step}: {error}")
    return found


def _wait(works: list[Future[None]]) -> None:
    for work in works:
        work.result()


def _until_none(check: Callable[[], list[str]]) -> list[str]:
    """Repeat a check until it finds nothing; return its violations after TRUE_SECONDS."""
    until = time.monotonic() + TRUE_SECONDS
    while (found := check()) and time.monotonic() < until:
        time.sleep(_AGAIN_SECONDS)
    return found


def _save_logs(target: Target) -> Path:
    """Copy the logs to a directory that outlives the run."""
    kept = Path(tempfile.mkdtemp(prefix="pydockershim-chaos-", dir="/var/tmp"))
    shutil.copy(target.server.daemon.log, kept / "server.log")
    shutil.copy(target.engine.log, kept / "dockerd.log")
    return kept
