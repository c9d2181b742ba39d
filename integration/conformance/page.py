"""Generate docs/compatibility.md from the kept results: `python -m integration.conformance.page`.

Each combination has a cell, also without a run.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from integration.conformance.node_e2e.groups import GROUPS
from integration.conformance.results import SUITE_OF_TESTS, Machine, Run, State, by_reason, kept
from integration.node.engines import ENGINES
from integration.pythons import outcomes
from integration.pythons.outcomes import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"

NOT_RUN = "\N{EN DASH}"
"""Stands in a cell without a run; the introduction explains it."""
_TITLES = {
    "critest": "cri-tools",
    "user-namespaces": "cri-tools",
    "kubelet": "Kubernetes",
    "churn": "Kubernetes",
    "node-e2e": "Kubernetes",
    SUITE_OF_TESTS: "pydockershim",
}
_HAVE_GATES = ("kubelet", "churn")
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_MACHINES_OF = ("critest", "kubelet")
"""Suites that should run on each machine."""
_CGROUPS = (("v1", "cgroupfs"), ("v1", "systemd"), ("v2", "cgroupfs"), ("v2", "systemd"))
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_ARCHITECTURES = ("amd64", "arm64")

_INTRODUCTION = """\
# Compatibility

Test results by version, platform and date. `python -m integration.conformance.page` makes this page from
`integration/conformance/results`. To repeat a cell, run `make conformance BIN=dir ARGS="--write"`.

A cell gives the day of the run, the passed cases of those that count, and the expected failures; \N{EN DASH} means not
run. `26` is Docker 26.1 of Debian 13, `28-containerd` Engine 28 with the containerd image store, `29-containerd` Docker
29 of Ubuntu 24.04 with its default, that store.
"""
_CRITEST = """\
## critest

All conformance tests; on control groups v2 in an emulated machine (`make conformance-v2`).
"""
_USER_NAMESPACES = """\
## critest in user namespaces

A gRPC server in between adds a user namespace to each pod, unless Kubernetes forbids it. Only further reasons are
listed.
"""
_KUBELET = """\
## Kubelets

A control plane and a kubelet, with the scenarios of `integration/conformance/scenarios`. Rows with the driver systemd
come from a node of kind, with fewer scenarios (`make test-kind`).

With `EventedPLEG`, a kubelet of 1.36 begins a deletion, or the end of pods at a shutdown of the node, up to 10 s late
with any runtime. `shutdownGracePeriod` needs room for that.
"""

_CHURN = """\
## Pods that crash

Checks fail if two live containers have the same name, or a kubelet asks for a container that runs.
"""
_NODE_E2E = """\
## Kubernetes' node tests

Groups of `test/e2e_node`, with substitutes of its images (`ARGS="--suite node-e2e"`).
"""
_TESTS = """\
## Tests

Integration tests of pods, stats and limits on cgroup v2 (`make test-v2`, `V2_DRIVER=cgroupfs`).
"""
_UNIT_TESTS = """\
## Unit tests

On each Python with the newest libraries (`make test-pythons`), and on the oldest with the oldest working libraries
(`ARGS=--lowest`).
"""
_INTRODUCTIONS = {
    "critest": _CRITEST,
    "user-namespaces": _USER_NAMESPACES,
    "kubelet": _KUBELET,
    "churn": _CHURN,
    "node-e2e": _NODE_E2E,
    SUITE_OF_TESTS: _TESTS,
}


def page(runs: Sequence[Run], unit_tests: Sequence[Outcome] = ()) -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION]
    of_critest = set(by_reason(newest(run for run in runs if run.suite == "critest"), "skipped"))
    for suite, introduction in _INTRODUCTIONS.items():
        own = newest(run for run in runs if run.suite == suite)
        known = of_critest if suite == "user-namespaces" else set()
        tables = _tables_of_groups(own) if suite == "node-e2e" else [_table(_rows(suite, own))]
        parts += [introduction, *tables, *_of_state("skipped", own, known=known)]
        parts += [*_of_state("expected", own), *_of_failures(own)]
    parts += [_UNIT_TESTS, _table(_rows_of_unit_tests(unit_tests)), *_of_failed_unit_tests(unit_tests)]
    parts += ["## Not run\n", _table(_not_run(runs)), "## Versions\n", _table(_versions(newest(runs)))]
    return "\n".join([*parts, *_notes(newest(runs))])


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
    return run.suite, run.version, run.gates, *where, run.group


def _rows(suite: str, runs: Sequence[Run]) -> Iterator[Sequence[str]]:
    gates = ["Feature gates"] if suite in _HAVE_GATES else []
    yield [_TITLES[suite], *gates, "Control groups", "Python", "Architecture", *ENGINES]
    for row in dict.fromkeys(_row(run) for run in runs):
        _, version, own, cgroup, driver, python, architecture, _ = row
        shown = [f"`{own}`" if own else "defaults"] if gates else []
        where = f"{cgroup}, {driver}", python, architecture
        yield [version, *shown, *where, *_cells(row, runs)]


def _tables_of_groups(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a table of all groups for each kubelet and machine."""
    for place in dict.fromkeys(_row(run)[:-1] for run in runs):
        _, version, gates, cgroup, driver, python, architecture = place
        yield f"{version} with `{gates}`, {cgroup}, {driver}, Python {python}, {architecture}:\n"
        yield _table([("Group", *ENGINES), *([group.name, *_cells((*place, group.name), runs)] for group in GROUPS)])


def _cells(row: tuple[str, ...], runs: Sequence[Run]) -> list[str]:
    cells = {run.engine: _cell(run) for run in runs if _row(run) == row}
    return [cells.get(engine, NOT_RUN) for engine in ENGINES]


def _cell(run: Run) -> str:
    passed = run.count("passed")
    if run.suite == "churn":
        counted = [case.reason for case in run.cases if case.state == "passed" and case.reason]
        found = ", ".join([*counted, f"{run.count('failed')} of {len(run.cases)} checks failed"])
        return f"{run.date}: {run.seconds / 60:.0f} minutes, {found}"
    expected = f", {run.count('expected')} expected" if run.count("expected") else ""
    return f"{run.date}: {passed}/{passed + run.count('failed')}{expected}"


def _of_state(state: State, runs: Sequence[Run], *, known: Set[str] = frozenset()) -> Iterator[str]:
    """Yield a table of the reasons of cases in a state that are not `known` from another table."""
    rows = [
        (_one_line(reason), str(len(cases)), ", ".join(_engines(run for of in cases.values() for run in of)))
        for reason, cases in sorted(by_reason(runs, state).items())
        if reason not in known
    ]
    if rows:
        yield "Skipped, by reason:\n" if state == "skipped" else "Expected to fail, by reason:\n"
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
    """Yield the machines that have no cell, by suite."""
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
    """Yield a row for each set of programs; versions with the same Docker and programs share a row."""
    yield ["Run", "Docker (commit of the server)", "Programs of other versions", "Note"]
    dockers: dict[tuple[str, str, str, str], dict[str, None]] = {}
    numbers = _numbers_of_notes(runs)
    for run in runs:
        docker = f"{run.docker} ({run.commit})" if run.commit else run.docker
        key = _TITLES[run.suite], run.version, _other_programs(run), numbers.get(_note(run), "")
        dockers.setdefault(key, {})[docker] = None
    versions: dict[tuple[str, str, str, str], list[str]] = {}
    for (title, version, programs, number), found in dockers.items():
        versions.setdefault((title, ", ".join(found), programs, number), []).append(version)
    for (title, docker, programs, number), of in versions.items():
        yield f"{title} {', '.join(of)}", docker, programs, number


def _other_programs(run: Run) -> str:
    others = {name: version for name, version in run.binaries.items() if version != run.version}
    plane = {others.get(name) for name in _CONTROL_PLANE}
    if len(plane) == 1 and None not in plane:
        others = {name: version for name, version in others.items() if name not in _CONTROL_PLANE}
        others["control plane"] = plane.pop() or ""
    return ", ".join(f"{name} {version}" for name, version in sorted(others.items()))


def _note(run: Run) -> str:
    """Return the note on a run without the version, which the run's row has."""
    return run.note.removeprefix(f"{run.version} ")


def _numbers_of_notes(runs: Sequence[Run]) -> dict[str, str]:
    return {note: f"({number})" for number, note in enumerate(dict.fromkeys(filter(None, map(_note, runs))), 1)}


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    lines = [f"- {number}: {note}\n" for note, number in _numbers_of_notes(runs).items()]
    if lines:
        yield "".join(lines)


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)]) + "\n"


def _one_line(text: str) -> str:
    return text.partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(kept(), outcomes.kept()))
