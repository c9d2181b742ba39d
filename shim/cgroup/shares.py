"""Converts between CPU shares (version 1) and CPU weight (version 2). Pure.

OCI runtimes are given shares and convert them to a weight. The weight is coarser: many shares give the same weight.
"""

import math

MIN_SHARES, MAX_SHARES = 2, 262_144
DEFAULT_SHARES, DEFAULT_PERIOD = 1024, 100_000
"""The kernel's defaults for a new group; the period in microseconds."""

_LEAST_WEIGHT, _MOST_WEIGHT = 1, 10000
_SHARES, _WEIGHTS = MAX_SHARES - MIN_SHARES, _MOST_WEIGHT - _LEAST_WEIGHT
_ROUNDING = 1e-9


def shares_from_weight(weight: int) -> int:
    """Return the lowest shares that the linear formula, which most runtimes use, converts to this weight."""
    return MIN_SHARES - (_LEAST_WEIGHT - weight) * _SHARES // _WEIGHTS


def may_become(shares: int, *, weight: int) -> bool:
    """Return whether a runtime may have converted these shares to this weight.

    Runtimes use a linear formula; runc since 1.3.2 uses a curve that maps the default shares to the default weight.
    """
    bounded = min(max(shares, MIN_SHARES), MAX_SHARES)
    linear = _LEAST_WEIGHT + (bounded - MIN_SHARES) * _WEIGHTS // _SHARES
    power = math.log2(bounded)
    curved = math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34) - _ROUNDING)
    return weight in {linear, curved}
