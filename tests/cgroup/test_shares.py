import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.cgroup.shares import may_become, shares_from_weight


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(2, 1), (512, 20), (1024, 39), (262144, 10000), (512, 59), (1024, 100), (1, 1)],
    ids=["least", "half", "default", "most", "half, curved", "default, curved", "less than the least"],
)
def test_may_become_accepts_the_weights_that_runtimes_compute(shares: int, weight: int) -> None:
    assert may_become(shares, weight=weight)


@pytest.mark.parametrize(("shares", "weight"), [(512, 21), (512, 100), (1024, 59), (2, 2)])
def test_may_become_refuses_other_weights(shares: int, weight: int) -> None:
    assert not may_become(shares, weight=weight)


@given(st.integers(1, 10000))
def test_shares_from_weight_convert_back_to_the_weight(weight: int) -> None:
    shares = shares_from_weight(weight)
    assert 2 <= shares <= 262144
    assert may_become(shares, weight=weight)
