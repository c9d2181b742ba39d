"""What a check found, and how people see it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    level: Level
    """FAIL when pods cannot run because of it; warn when they can, and something else will go wrong one day."""
    subject: str
    """What was looked at, one or two words."""
    text: str
    """What was found."""
    advice: str = ""
    """What to do next; empty where there is nothing to be done."""


def failed(findings: Iterable[Finding]) -> bool:
    """Whether anything keeps pods from running."""
    return any(finding.level == "FAIL" for finding in findings)


def table(findings: Iterable[Finding]) -> str:
    """Columns: level, subject, text; advice stands below what it is about."""
    found = list(findings)
    width = max((len(finding.subject) for finding in found), default=0)
    return "\n".join(line for finding in found for line in _lines(finding, width))


def _lines(finding: Finding, width: int) -> list[str]:
    lines = [f"{finding.level:<4}  {finding.subject:<{width}}  {finding.text}"]
    return [*lines, f"{'':<4}  {'':<{width}}  -> {finding.advice}"] if finding.advice else lines
