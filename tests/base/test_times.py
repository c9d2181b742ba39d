"""Times are parsed to the nanosecond."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.base.times import ns_from_rfc3339


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2024-05-01T10:00:00.123456789Z", 1714557600_123456789),
        ("2024-05-01T10:00:00.5Z", 1714557600_500000000),
        ("2024-05-01T10:00:00.12Z", 1714557600_120000000),
        ("2024-05-01T10:00:00.1234567891234Z", 1714557600_123456789),
        ("2024-05-01T12:00:00.000000007+02:00", 1714557600_000000007),
        ("2024-05-01T04:30:00-05:30", 1714557600_000000000),
        ("2024-05-01t10:00:00z", 1714557600_000000000),
        ("2024-02-29T00:00:00Z", 1709164800_000000000),
    ],
)
def test_a_time_is_parsed_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert ns_from_rfc3339(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["", "0001-01-01T00:00:00Z", "0000-00-00T00:00:00Z", "2024-13-01T00:00:00Z", "yesterday", "2024-05-01T10:00:00"],
    ids=["missing", "Go's zero", "all zero", "month 13", "words", "no zone"],
)
def test_text_that_is_not_a_time_gives_never(text: str) -> None:
    assert ns_from_rfc3339(text) == 0


@settings(deadline=None)
@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1)),  # noqa: DTZ001 - made aware below
    st.integers(0, 999),
)
def test_parsing_agrees_with_datetime(moment: datetime, nanos: int) -> None:
    since = moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    text = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06}{nanos:03}Z"
    assert ns_from_rfc3339(text) == since // timedelta(microseconds=1) * 1000 + nanos
