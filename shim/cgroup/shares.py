"""CPU shares of version 1 beside the CPU weight of version 2. Pure.

OCI runtimes get shares and convert them to a weight, which is coarser: many shares become one weight.
"""

import math

MIN_SHARES, MAX_SHARES = 2, 262_144
DEFAULT_SHARES, DEFAULT_PERIOD = 1024, 100_000
"""What the kernel begins a group with; the period in microseconds."""

_LEAST_WEIGHT, _MOST_WEIGHT = 1, 10000
_SHARES, _WEIGHTS = MAX_SHARES - MIN_SHARES, _MOST_WEIGHT - _LEAST_WEIGHT
_ROUNDING = 1e-9


def shares_from_weight(weight: int) -> int:
    """Return the least shares that become this weight along the straight line, which most runtimes follow."""
    return MIN_SHARES - (_LEAST_WEIGHT - weight) * _SHARES // _WEIGHTS


def may_become(shares: int, *, weight: int) -> bool:
    """Return whether a runtime may have converted these shares to this weight.

    Along the straight line, or, since runc 1.3.2, along a curve that gives the default of one the default of the
    other.
    """
    bounded = min(max(shares, MIN_SHARES), MAX_SHARES)
    straight = _LEAST_WEIGHT + (bounded - MIN_SHARES) * _WEIGHTS // _SHARES
    power = math.log2(bounded)
    curved = math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34) - _ROUNDING)
    return weight in {straight, curved}
