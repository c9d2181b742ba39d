"""The report of Kubernetes' node suite as cases."""

from collections.abc import Iterator, Sequence

from integration.conformance import ginkgo
from integration.conformance.ginkgo import Report, Spec
from integration.conformance.node_e2e.expected import SKIPPED
from integration.conformance.results import Case, case

_MOST_CHARACTERS = 600
"""Of a reason: messages of this suite may hold whole objects."""


def cases_of(report: bytes) -> tuple[Case, ...]:
    """Return the cases of ginkgo's JSON report, sorted by name.

    Specs that the filters of the run left out are no cases. The end of a suite before its last spec, such as by its
    timeout, is a case that failed.
    """
    reports = ginkgo.read_report(report, program="e2e_node.test")
    found = [_case(spec) for spec in ginkgo.cases_in(reports) if spec.state != "pending" and not _is_left_out(spec)]
    return tuple(sorted([*found, *_of_suites(reports)], key=lambda each: each.name))


def _is_left_out(spec: Spec) -> bool:
    """Return whether a filter left the spec out: a spec that skips itself says why."""
    return spec.state == "skipped" and not spec.message


def _case(spec: Spec) -> Case:
    return case(spec.name, spec.outcome, spec.seconds, _reason(spec) if spec.outcome != "passed" else "")


def _reason(spec: Spec) -> str:
    if spec.state == "skipped":
        for part, reason in SKIPPED.items():
            if part in spec.message:
                return reason
    text = spec.message or f"{spec.state} without a reason"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _of_suites(reports: Sequence[Report]) -> Iterator[Case]:
    for report in reports:
        for reason in report.special_suite_failure_reasons or ():
            yield Case("the whole suite", "failed", 0.0, reason)
