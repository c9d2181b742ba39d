"""Exponential backoff."""


def backoff(failures: int, *, first: float, longest: float) -> float:
    """Return the seconds to wait after `failures` consecutive failures.

    `first` is the pause after the first failure. It doubles with each further failure, up to `longest`.
    """
    return min(first * 2.0 ** min(failures - 1, 30), longest)  # a larger exponent could overflow
