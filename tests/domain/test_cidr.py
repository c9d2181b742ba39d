"""Pod address ranges, from the setting and from the kubelet."""

import pytest

from shim.domain.cidr import parse_pod_cidr
from shim.domain.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", ()),
        (" , ", ()),
        ("10.244.1.0/24", ("10.244.1.0/24",)),
        ("10.244.1.7/24", ("10.244.1.0/24",)),
        ("fd00:0::/64, 10.0.0.0/8", ("fd00::/64", "10.0.0.0/8")),
    ],
)
def test_ranges_keep_their_order_and_become_canonical(text: str, ranges: tuple[str, ...]) -> None:
    assert parse_pod_cidr(text) == ranges


def test_an_invalid_range_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"^pod_cidr 'nonsense' is not an address range: 'nonsense' does not"):
        parse_pod_cidr("10.1.0.0/24,nonsense")
