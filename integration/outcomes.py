"""A pytest plugin that keeps what tests have shown on an engine, for docs/compatibility.md: `make test-v2`.

`pytest -p integration.outcomes --results DIRECTORY` writes a file for each engine, of the form and name of those in
`integration/conformance/results`. Machines that few have are what it is for.
"""

from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.conformance.machine import commit, machine_of
from integration.conformance.results import SUITE_OF_TESTS, Case, Machine, Run, State, case, file_name, write
from integration.node.engine import Engine
from shim import __version__

_LINES = 4
"""Of a failure: one of gRPC has the status and its text in the second and third."""
NOT_REACHED = "the time of the run did not suffice"


class Outcomes:
    """Collects what becomes of each test that is run once for each engine, and writes it."""

    def __init__(self, directory: Path, note: str) -> None:
        self._directory = directory
        self._note = note
        self._commit = commit()
        self._places: dict[str, tuple[str, Machine]] = {}
        """For each engine its version, and what it is on."""
        self._cases: dict[str, dict[str, Case]] = {}
        """For each engine the tests by their names; those that are to come are skipped ones."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take all that is to come for what the time did not suffice for."""
        for item in session.items:
            if engine := _engine_name(item):
                self._cases.setdefault(engine, {})[item.nodeid] = Case(item.nodeid, "skipped", 0, NOT_REACHED)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add one of the three parts of a test: the worst counts, and the last time when it is repeated."""
        report = yield
        if engine := _engine_name(item):
            self._note_place(item)
            cases = self._cases[engine]
            before = None if report.when == "setup" else cases.get(item.nodeid)
            cases[item.nodeid] = _together(before, _part(report))
        return report

    def pytest_runtest_logfinish(self) -> None:
        """Write a file for each engine after each test: a machine may be ended at any time."""
        for engine, cases in self._cases.items():
            if engine not in self._places:
                continue  # it did not start, and nobody knows which one it would have been
            docker, machine = self._places[engine]
            run = Run(
                suite=SUITE_OF_TESTS,
                version=__version__,
                engine=engine,
                docker=docker,
                date=datetime.now(UTC).date().isoformat(),
                commit=self._commit,
                machine=machine,
                binaries={},
                note=self._note,
                cases=tuple(sorted(cases.values(), key=lambda each: each.name)),
            )
            self._directory.mkdir(parents=True, exist_ok=True)
            write(self._directory / file_name(run), [run])

    def _note_place(self, item: pytest.Item) -> None:
        engine = getattr(item, "funcargs", {}).get("engine")
        if isinstance(engine, Engine) and engine.name not in self._places and engine.daemon.running:
            self._places[engine.name] = engine.version, machine_of(engine.api)


def _engine_name(item: pytest.Item) -> str:
    """Return the engine that a test is run on, empty for none."""
    return str(item.callspec.params.get("engine_name", "")) if hasattr(item, "callspec") else ""


def _part(report: pytest.TestReport) -> Case:
    state: State = report.outcome if report.outcome in ("failed", "skipped") else "passed"
    return case(report.nodeid, state, round(report.duration, 1), _reason(report))


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped, or how it failed; without the places in files, which the machine names."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return "\n".join(str(crash.message).splitlines()[:_LINES]) if crash is not None else ""


def _together(before: Case | None, part: Case) -> Case:
    if before is None:
        return part
    worse = before if before.state != "passed" else part
    return Case(part.name, worse.state, round(before.seconds + part.seconds, 1), worse.reason)


def pytest_configure(config: pytest.Config) -> None:
    """Begin, where a directory was given."""
    directory = config.getoption("--results")
    if directory is not None:
        config.pluginmanager.register(Outcomes(directory, config.getoption("--note")))
