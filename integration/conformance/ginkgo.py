"""Runs programs of the test framework ginkgo, and reads their JSON reports."""

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from integration.conformance.results import State
from integration.node.commands import NodeError

_STATES: dict[str, State] = {"passed": "passed", "skipped": "skipped", "pending": "skipped"}
"""Every other state of ginkgo is a failure: failed, panicked, interrupted, aborted, timedout."""

_SUMMARY = re.compile(r"Will run (\d+) of (\d+) specs")
_DONE = re.compile(r"^(?:•|S) \[")
_FAILED = re.compile(r"^• \[(?:FAILED|PANICKED|TIMEDOUT|INTERRUPTED)\]")


class _Failure(msgspec.Struct, frozen=True, rename="pascal"):
    message: str = ""


class Spec(msgspec.Struct, frozen=True, rename="pascal"):
    """A spec, or a step of setup or teardown, of a report."""

    leaf_node_type: str
    leaf_node_text: str
    state: str
    container_hierarchy_texts: list[str] | None = None
    run_time: int = 0
    """In ns."""
    failure: _Failure | None = None

    @property
    def name(self) -> str:
        """The texts of its containers and its own text."""
        return " ".join([*(self.container_hierarchy_texts or ()), self.leaf_node_text or self.leaf_node_type])

    @property
    def outcome(self) -> State:
        """Its state as a state of a case."""
        return _STATES.get(self.state, "failed")

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return round(self.run_time / 1e9, 3)

    @property
    def message(self) -> str:
        """Why it failed, or what it said when it skipped itself; empty for a spec that a filter left out."""
        return self.failure.message.strip() if self.failure else ""


class Report(msgspec.Struct, frozen=True, rename="pascal"):
    """A suite of a report."""

    spec_reports: list[Spec] | None = None
    special_suite_failure_reasons: list[str] | None = None
    """Why the whole suite failed, such as its timeout."""


def read_report(report: bytes, *, program: str) -> list[Report]:
    """Decode a JSON report; raises NodeError if it is malformed."""
    try:
        return msgspec.json.decode(report, type=list[Report])
    except msgspec.DecodeError as cause:
        raise NodeError(f"read {program}'s report: {cause}") from cause


def cases_in(reports: Sequence[Report]) -> Iterator[Spec]:
    """Yield the specs; a setup or teardown step counts only if it failed."""
    for report in reports:
        for spec in report.spec_reports or ():
            if spec.leaf_node_type == "It" or spec.outcome == "failed":
                yield spec


def follow(
    command: Sequence[str | os.PathLike[str]],
    *,
    log: Path,
    say: Callable[[str], None],
    seconds: float,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a program in the directory of its log to its end, copy its output to the log, and print progress.

    The program is killed after some seconds; it should end itself before.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        cwd=log.parent,
        env=env,
    ) as child:
        watchdog = threading.Timer(seconds, child.kill)
        watchdog.start()
        try:
            _copy(child, log, say)
        except BaseException:
            child.kill()
            raise
        finally:
            watchdog.cancel()


def _copy(child: subprocess.Popen[str], log: Path, say: Callable[[str], None]) -> None:
    assert child.stdout is not None
    total, done, failed = "?", 0, 0
    with log.open("w") as copy:
        for line in child.stdout:
            copy.write(line)
            if found := _SUMMARY.search(line):
                total = found[1]
            if _DONE.search(line):
                done += 1
                failed += bool(_FAILED.search(line))
                # Some of them count as skipped later: the report says that the machine cannot run them.
                say(f"{done} of {total} cases, {failed} did not pass")
