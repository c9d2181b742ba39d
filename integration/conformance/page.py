"""docs/compatibility.md, made from the results that are kept: `python -m integration.conformance.page`.

Nothing is a cell of its tables that was not run, and what was not run says so.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from integration.conformance.results import SUITE_OF_TESTS, Machine, Run, kept, skips
from integration.node.engines import ENGINES
from integration.pythons import outcomes
from integration.pythons.outcomes import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"

NOT_RUN = "not run"
_TITLES = {"critest": "cri-tools", "kubelet": "Kubernetes", "churn": "Kubernetes", SUITE_OF_TESTS: "pydockershim"}
_HAVE_GATES = ("kubelet", "churn")
_MACHINES_OF = ("critest", "kubelet")
"""The suites that are wanted on each machine."""
_CGROUPS = (("v1", "cgroupfs"), ("v1", "systemd"), ("v2", "cgroupfs"), ("v2", "systemd"))
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_ARCHITECTURES = ("amd64", "arm64")

_INTRODUCTION = """\
# Compatibility

What was run, with which versions, on what, and when. This page is made by `python -m integration.conformance.page` from
the files in `integration/conformance/results`, and a test holds it to them; anyone who has the binaries can repeat a
cell: `make conformance BIN=dir ARGS="--write"`, where `dir` has critest, or etcd, the binaries of a control plane and a
kubelet. None of these is downloaded, and one that is missing is named.

A cell is the day of the run and how many of its cases passed, of those that were not skipped. `26` is Docker 26.1 of
Debian 13, `28-containerd` Docker Engine 28 with the containerd image store, `29-containerd` Docker 29 of Ubuntu 24.04,
which has it by default.
"""
_CRITEST = """\
## critest

The conformance tests of the CRI, whole. Its images come from a private registry under the names of the public ones.
"""
_KUBELET = """\
## Kubelets

A node of etcd, kube-apiserver, kube-controller-manager, kube-scheduler and a kubelet on the server's socket, and the
scenarios of `integration/conformance/scenarios`, with kubectl for what a user does. What was run in a node of kind has
a row of its own, where systemd makes the control groups, and fewer scenarios: its note says which (`make test-kind
BIN=dir ARGS="-k scenarios --results integration/conformance/results"`).

With `EventedPLEG` a kubelet of 1.36 is slower, whatever the runtime: after each sync of a pod it acts on that pod again
after an event of it, or else up to 5 s later, when it takes what it knows for fresh. A sync that waits so is followed
by the end of the pod, which waits in its turn: a deletion, and the end of pods at a shutdown of the node, begin up to
10 s late. A `shutdownGracePeriod` has to have room for that.
"""

_CHURN = """\
## Pods that crash

Pods of three kinds that crash, restart and are probed, round after round. Two live containers of one name, and
containers that a kubelet asks for while they run, are counted. A cell is the day, how long, and what was counted.
"""
_TESTS = """\
## Tests

Our own integration tests of pods, stats and limits, which depend on the control groups, on machines where the others
were not run. Control groups of version 2 are those of an emulated machine (`make test-v2`, with systemd;
`V2_DRIVER=cgroupfs`), ten to thirty times as slow.
"""
_UNIT_TESTS = """\
## Unit tests

The tests of the folder `tests`, which need neither Docker nor root, on each version of Python: with the newest
libraries (`make test-pythons`), and on the oldest Python with the oldest ones that will do (`ARGS=--lowest`).
"""
_INTRODUCTIONS = {"critest": _CRITEST, "kubelet": _KUBELET, "churn": _CHURN, SUITE_OF_TESTS: _TESTS}


def page(runs: Sequence[Run], unit_tests: Sequence[Outcome] = ()) -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION]
    for suite, introduction in _INTRODUCTIONS.items():
        own = newest(run for run in runs if run.suite == suite)
        parts += [introduction, _table(_rows(suite, own)), *_of_skips(own), *_of_failures(own)]
    parts += [_UNIT_TESTS, _table(_rows_of_unit_tests(unit_tests)), *_of_failed_unit_tests(unit_tests)]
    parts += ["## Not run\n", _table(_not_run(runs)), "## Versions\n", _table(_versions(newest(runs)))]
    return "\n".join(parts)


def newest(runs: Iterable[Run]) -> list[Run]:
    """Return the newest run of each cell, in the order of the rows."""
    found: dict[tuple[object, ...], Run] = {}
    for run in runs:
        key = _row(run), run.engine
        if key not in found or found[key].date <= run.date:
            found[key] = run
    return sorted(found.values(), key=lambda run: (_row(run), ENGINES.index(run.engine)))


def _row(run: Run) -> tuple[str, ...]:
    machine = run.machine
    where = (machine.cgroup, machine.driver, machine.python, machine.architecture)
    return run.suite, run.version, run.gates, *where


def _rows(suite: str, runs: Sequence[Run]) -> Iterator[Sequence[str]]:
    gates = ["Feature gates"] if suite in _HAVE_GATES else []
    yield [_TITLES[suite], *gates, "Control groups", "Python", "Architecture", *ENGINES]
    for row in dict.fromkeys(_row(run) for run in runs):
        cells = {run.engine: _cell(run) for run in runs if _row(run) == row}
        _, version, own, cgroup, driver, python, architecture = row
        shown = [f"`{own}`" if own else "defaults"] if gates else []
        where = f"{cgroup}, {driver}", python, architecture
        yield [version, *shown, *where, *(cells.get(engine, NOT_RUN) for engine in ENGINES)]


def _cell(run: Run) -> str:
    passed = run.count("passed")
    if run.suite == "churn":
        counted = [case.reason for case in run.cases if case.state == "passed" and case.reason]
        found = ", ".join([*counted, f"{run.count('failed')} of {len(run.cases)} checks failed"])
        return f"{run.date}: {run.seconds / 60:.0f} minutes, {found}"
    return f"{run.date}: {passed} of {passed + run.count('failed')}"


def _of_skips(runs: Sequence[Run]) -> Iterator[str]:
    rows = [
        (_one_line(reason), str(len(cases)), ", ".join(_engines(run for of in cases.values() for run in of)))
        for reason, cases in sorted(skips(runs).items())
    ]
    if rows:
        yield "Skipped, by reason:\n"
        yield _table([("Reason", "Cases", "Engines"), *rows])


def _of_failures(runs: Sequence[Run]) -> Iterator[str]:
    failed: dict[str, list[Run]] = {}
    for run in runs:
        for case in run.cases:
            if case.state == "failed":
                failed.setdefault(case.name, []).append(run)
    if failed:
        yield "Failed:\n"
        yield _table([("Case", "Runs"), *((name, ", ".join(_name(run) for run in of)) for name, of in failed.items())])


def _rows_of_unit_tests(found: Sequence[Outcome]) -> Iterator[Sequence[str]]:
    yield ["pydockershim", "Python", "Libraries", "Architecture", "Day", "Passed", "Failed", "Skipped"]
    for one in found:
        counts = (one.counts.passed, len(one.counts.failed), one.counts.skipped)
        yield [one.version, one.python, one.libraries, one.architecture, one.date, *map(str, counts)]
    there = {one.minor for one in found}
    for python in _PYTHONS:
        if python not in there:
            yield ["", python, "", "", NOT_RUN, "", "", ""]


def _of_failed_unit_tests(found: Sequence[Outcome]) -> Iterator[str]:
    failed: dict[str, list[str]] = {}
    for one in found:
        for name in one.counts.failed:
            failed.setdefault(name, []).append(f"{one.python}, {one.libraries}")
    if failed:
        yield "Failed:\n"
        yield _table([("Test", "Python"), *((name, "; ".join(of)) for name, of in sorted(failed.items()))])


def _engines(runs: Iterable[Run]) -> list[str]:
    there = {run.engine for run in runs}
    return [engine for engine in ENGINES if engine in there]


def _name(run: Run) -> str:
    return f"{run.engine} with `{run.gates}`" if run.gates else run.engine


def _not_run(runs: Sequence[Run]) -> Iterator[Sequence[str]]:
    """Return, by suite, which of the known machines have no cell at all."""
    yield ["", *_MACHINES_OF]
    for title, wanted in _wanted():
        cells = []
        for suite in _MACHINES_OF:
            there = {value for run in runs if run.suite == suite for value in _values(run.machine)}
            cells.append("in the table" if wanted in there else NOT_RUN)
        if NOT_RUN in cells:
            yield [title, *cells]


def _wanted() -> Iterator[tuple[str, tuple[str, ...]]]:
    for cgroup, driver in _CGROUPS:
        yield f"control groups {cgroup}, driver {driver}", (cgroup, driver)
    for python in _PYTHONS:
        yield f"Python {python}", (python,)
    for architecture in _ARCHITECTURES:
        yield architecture, (architecture,)


def _values(machine: Machine) -> Iterator[tuple[str, ...]]:
    yield machine.cgroup, machine.driver
    yield (machine.python,)
    yield (machine.architecture,)


def _versions(runs: Sequence[Run]) -> Iterator[Sequence[str]]:
    yield ["Run", "Docker", "Server", "Programs", "Note"]
    seen = set()
    for run in runs:
        programs = ", ".join(f"{name} {version}" for name, version in sorted(run.binaries.items()))
        server = f"commit {run.commit}" if run.commit else ""
        row = (f"{_TITLES[run.suite]} {run.version}", run.docker, server, programs, run.note)
        if row not in seen:
            seen.add(row)
            yield row


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)]) + "\n"


def _one_line(text: str) -> str:
    return text.partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(kept(), outcomes.kept()))
