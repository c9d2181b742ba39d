"""A pytest plugin that records test results on each engine, for docs/compatibility.md: `make test-v2`.

`pytest -p integration.outcomes --results DIRECTORY` writes one file for each engine, with the format and name of the
files in `integration/conformance/results`. It is meant for machines that few people have.
"""

from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.conformance.machine import commit, machine_of
from integration.conformance.results import (
    NOT_REACHED,
    SUITE_OF_TESTS,
    Case,
    Machine,
    Run,
    State,
    case,
    file_name,
    write,
)
from integration.node.engine import Engine
from shim import __version__

_LINES = 4
"""Lines kept of a failure: gRPC errors have their status and text in the second and third."""


class Outcomes:
    """Collects the outcome of each test that runs once for each engine, and writes it."""

    def __init__(self, directory: Path, note: str) -> None:
        self._directory = directory
        self._note = note
        self._commit = commit()
        self._places: dict[str, tuple[str, Machine]] = {}
        """The version and the machine, for each engine."""
        self._cases: dict[str, dict[str, Case]] = {}
        """The tests by name, for each engine; tests that have not run yet count as skipped."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Mark all collected tests as not reached."""
        for item in session.items:
            if engine := _engine_name(item):
                self._cases.setdefault(engine, {})[item.nodeid] = Case(item.nodeid, "skipped", 0, NOT_REACHED)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Merge a phase of a test: the worst phase counts; a rerun replaces the earlier result."""
        report = yield
        if engine := _engine_name(item):
            self._note_place(item)
            cases = self._cases[engine]
            before = None if report.when == "setup" else cases.get(item.nodeid)
            cases[item.nodeid] = _merged(before, _part(report))
        return report

    def pytest_runtest_logfinish(self) -> None:
        """Write one file for each engine after each test, because a machine may be shut down at any time."""
        for engine, cases in self._cases.items():
            if engine not in self._places:
                continue  # the engine did not start, so its version is unknown
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
    return str(item.callspec.params.get("engine_name", "")) if hasattr(item, "callspec") else ""


def _part(report: pytest.TestReport) -> Case:
    state: State = report.outcome if report.outcome in ("failed", "skipped") else "passed"
    return case(report.nodeid, state, round(report.duration, 1), _reason(report))


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped or how it failed, without line numbers."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return "\n".join(str(crash.message).splitlines()[:_LINES]) if crash is not None else ""


def _merged(before: Case | None, part: Case) -> Case:
    if before is None:
        return part
    worse = before if before.state != "passed" else part
    return Case(part.name, worse.state, round(before.seconds + part.seconds, 1), worse.reason)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if a directory was given."""
    directory = config.getoption("--results")
    if directory is not None:
        config.pluginmanager.register(Outcomes(directory, config.getoption("--note")))
