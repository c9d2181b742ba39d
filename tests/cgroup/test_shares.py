import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.cgroup.shares import may_become, shares_from_weight


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(2, 1), (512, 20), (1024, 39), (262144, 10000), (512, 59), (1024, 100), (1, 1)],
    ids=["least", "half", "default", "most", "half, curved", "default, curved", "less than the least"],
)
def test_what_runtimes_make_of_shares(shares: int, weight: int) -> None:
    assert may_become(shares, weight=weight)


@pytest.mark.parametrize(("shares", "weight"), [(512, 21), (512, 100), (1024, 59), (2, 2)])
def test_what_none_makes_of_them(shares: int, weight: int) -> None:
    assert not may_become(shares, weight=weight)


@given(st.integers(1, 10000))
def test_a_weight_gives_shares_that_become_it(weight: int) -> None:
    shares = shares_from_weight(weight)
    assert 2 <= shares <= 262144
    assert may_become(shares, weight=weight)
