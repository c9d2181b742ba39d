"""Findings of checks, and how they are shown."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "FAIL"]

SUBJECT_WIDTH = 14
"""Characters of the longest subject: lines are printed as they come, so the column cannot be fitted to them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    level: Level
    """FAIL: pods cannot run because of it; warn: they can, and something else will go wrong one day."""
    subject: str
    """The subject of the check, in a word or two."""
    text: str
    """The result."""
    advice: str = ""
    """The remedy, a command where possible; empty if none is needed."""


def failed(findings: Iterable[Finding]) -> bool:
    """Return whether anything keeps pods from running."""
    return any(finding.level == "FAIL" for finding in findings)


def as_json(findings: Sequence[Finding]) -> str:
    """Return all findings as an object of JSON: `failed`, and `findings` with level, subject, text and advice."""
    return json.dumps({"failed": failed(findings), "findings": [asdict(each) for each in findings]}, indent=2)


def shown(finding: Finding) -> str:
    """Return the columns level, subject and text, with the advice on the next line."""
    line = f"{finding.level:<4}  {finding.subject:<{SUBJECT_WIDTH}}  {finding.text}"
    return f"{line}\n{'':<4}  {'':<{SUBJECT_WIDTH}}  -> {finding.advice}" if finding.advice else line
