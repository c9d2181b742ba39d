"""Runs scenarios, in parallel where they do not disturb each other, and detects duplicate containers."""

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from integration.conformance import scenarios  # noqa: F401  importing it fills SCENARIOS
from integration.conformance.churn import churn
from integration.conformance.cluster import Cluster
from integration.conformance.duplicates import Watch, refused
from integration.conformance.kubectl import Kubectl
from integration.conformance.pleg import streams
from integration.conformance.results import Case as Result
from integration.conformance.results import State, case
from integration.conformance.scenario import Case, Scenario, Skipped, chosen, eventually

_AT_ONCE = 3
"""How many scenarios run in parallel: most of their time they wait."""
_STOP_SECONDS = 60
_REPOSITORY = Path(__file__).parents[2]


def run_scenarios(cluster: Cluster, *, only: str, say: Callable[[str], None]) -> tuple[Result, ...]:
    """Run the scenarios, first those that can run in parallel; return their results.

    Two more results list duplicate containers, and containers that the kubelet requested while they ran. With the gate
    EventedPLEG a third says whether the kubelet used events to the end.
    """
    selected = chosen(only)
    done: list[Result] = []
    lock = threading.Lock()

    def one(which: Scenario) -> None:
        result = _run(which, cluster)
        with lock:
            done.append(result)
            say(f"{len(done)} of {len(selected)} scenarios, {sum(each.state == 'failed' for each in done)} failed")

    with Watch(cluster.served.engine) as watch:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scenario") as pool:
            list(pool.map(one, (each for each in selected if not each.alone)))
        done += _events(cluster)
        for each in selected:
            if each.alone:
                _restore_events(cluster)
                one(each)
    return tuple(sorted([*done, *_duplicates(watch, cluster)], key=lambda result: result.name))


def run_churn(cluster: Cluster, *, minutes: float, say: Callable[[str], None]) -> tuple[Result, ...]:
    """Run pods that crash and restart for some minutes; return the result, and the results about all containers."""

    def pods_that_crash_restart_and_are_probed(case: Case) -> None:
        churn(case, minutes=minutes, say=say)

    with Watch(cluster.served.engine) as watch:
        done = _run(Scenario(pods_that_crash_restart_and_are_probed, alone=True), cluster)
    return (done, *_events(cluster), *_duplicates(watch, cluster))


def _events(cluster: Cluster) -> Iterator[Result]:
    if cluster.gates.get("EventedPLEG"):
        found = streams(cluster.kubectl)
        given_up = [] if found.in_use else [f"it fell back to lists: {found}"]
        yield _nothing("the kubelet takes events to the end", given_up, counted=f"{found.failed} streams have failed")


def _restore_events(cluster: Cluster) -> None:
    """Restart a kubelet that has fallen back to lists, as it does when a scenario stops the server."""
    if cluster.gates.get("EventedPLEG") and not streams(cluster.kubectl).in_use:
        cluster.kubelet.stop(timeout=_STOP_SECONDS)
        cluster.start_kubelet()
        eventually(cluster.ready, cluster.node)


def _duplicates(watch: Watch, cluster: Cluster) -> Iterator[Result]:
    starts = f"{watch.starts} containers were started"
    yield _nothing("no two live containers of one name", watch.duplicates, counted=starts)
    log = cluster.kubelet.log.read_text(errors="replace")
    yield _nothing("no container is asked for while it runs", refused(log))


def _nothing(name: str, seen: Sequence[str], *, counted: str = "") -> Result:
    return case(name, "failed", 0, "\n".join(seen)) if seen else Result(name, "passed", 0, counted)


def _run(which: Scenario, cluster: Cluster) -> Result:
    started = time.monotonic()
    state: State = "passed"
    reason = ""
    try:
        _carry_out(which, cluster)
    except Skipped as cause:
        state, reason = "skipped", str(cause)
    except Exception as cause:  # noqa: BLE001  any error in a scenario is its result
        state, reason = "failed", f"{cause}\n{last_calls(cause)}"
    return case(which.name, state, round(time.monotonic() - started, 1), reason)


def last_calls(failure: Exception) -> str:
    """Return the last lines of a traceback, with paths relative to the repository, because results are published."""
    return "".join(traceback.format_tb(failure.__traceback__)[-2:]).replace(f"{_REPOSITORY}/", "")


def _carry_out(which: Scenario, cluster: Cluster) -> None:
    missing = cluster.binaries.missing(which.needs)
    if missing:
        raise Skipped(f"{', '.join(missing)} missing")  # without paths, because results are published
    if cluster.kubelet_version < which.since:
        raise Skipped(f"kubelets have it from {'.'.join(map(str, which.since))} on")
    namespace = re.sub("[^a-z0-9]+", "-", which.name.lower())[:60].strip("-")
    cluster.kubectl("create", "namespace", namespace)
    hands = Case(cluster, Kubectl(cluster.kubectl.program, cluster.kubectl.kubeconfig, cluster.kubectl.home, namespace))
    try:
        eventually(lambda: hands.get("serviceaccounts", "default"))
        eventually(lambda: hands.get("configmaps", "kube-root-ca.crt"))
        which.run(hands)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
