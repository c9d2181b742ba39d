"""Values in their units, and the marks of an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MARKS = 4
"""Approximate number of marks of an axis."""
_DECIMAL_STEPS = (1, 2, 2.5, 5, 10)
_SUFFIXES: dict[str, tuple[tuple[float, str], ...]] = {
    "none": ((1, ""),),
    "short": ((1, ""), (1e3, " K"), (1e6, " Mil")),
    "reqps": ((1, " req/s"), (1e3, "K req/s")),
    "bytes": ((1, " B"), (1 << 10, " KiB"), (1 << 20, " MiB"), (1 << 30, " GiB")),
    "s": ((1e-6, " µs"), (1e-3, " ms"), (1, " s"), (60, " min"), (3600, " h")),
}
"""Grafana's units: the suffix from each value on, for a number divided by that value."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: its end, and its marks with their texts."""

    top: float
    marks: Sequence[tuple[float, str]]


def text(value: float, unit: str) -> str:
    """Return a value with three digits, such as `1.25 s`."""
    divisor, suffix = _suffix(value, unit)
    return _number(value / divisor) + suffix


def scale(largest: float, unit: str) -> Scale:
    """Return an axis that begins at 0 and includes a value. All of its marks have the same suffix."""
    step = _step(largest or 1, binary=unit == "bytes")
    count = max(1, math.ceil(largest / step - 1e-9))
    divisor, suffix = _suffix(count * step, unit)
    if unit == "s" and divisor == 60 and step < 60:
        divisor, suffix = 1, " s"
    marks = [(number * step, _number(number * step / divisor) + suffix) for number in range(count + 1)]
    return Scale(top=count * step, marks=marks)


def _suffix(value: float, unit: str) -> tuple[float, str]:
    suffixes = _SUFFIXES[unit]
    if not value:
        return next((each for each in suffixes if each[0] == 1), suffixes[0])
    return next((each for each in reversed(suffixes) if abs(value) >= each[0] * (1 - 1e-9)), suffixes[0])


def _step(largest: float, *, binary: bool) -> float:
    wanted = largest / _MARKS
    if binary:
        return float(2 ** max(0, math.ceil(math.log2(wanted))))
    decade = 10.0 ** math.floor(math.log10(wanted))
    return next(each * decade for each in _DECIMAL_STEPS if each * decade >= wanted * (1 - 1e-9))


def _number(value: float) -> str:
    shown = f"{value:.3g}"
    return f"{value:.0f}" if "e" in shown else shown
