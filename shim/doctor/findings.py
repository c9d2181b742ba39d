"""Findings of checks, and their text."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "FAIL"]

SUBJECT_WIDTH = 14
"""Characters of the longest subject: lines are printed as they come, so the column cannot be fitted to them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    level: Level
    """FAIL when pods cannot run because of it; warn when they can, and something else will go wrong one day."""
    subject: str
    """What was checked, one or two words."""
    text: str
    """What was found."""
    advice: str = ""
    """What to do next; empty where there is nothing to be done."""


def failed(findings: Iterable[Finding]) -> bool:
    """Return whether anything keeps pods from running."""
    return any(finding.level == "FAIL" for finding in findings)


def shown(finding: Finding) -> str:
    """Return the columns level, subject and text; advice stands below what it is about."""
    line = f"{finding.level:<4}  {finding.subject:<{SUBJECT_WIDTH}}  {finding.text}"
    return f"{line}\n{'':<4}  {'':<{SUBJECT_WIDTH}}  -> {finding.advice}" if finding.advice else line
