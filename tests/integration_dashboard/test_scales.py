"""Formatting of values with units, and marks of axes."""

import pytest

from integration.dashboard import scales


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "s", "0 s"),
        (0.0000125, "s", "12.5 µs"),
        (0.0125, "s", "12.5 ms"),
        (59, "s", "59 s"),
        (492, "s", "8.2 min"),
        (7200, "s", "2 h"),
        (0, "bytes", "0 B"),
        (1 << 20, "bytes", "1 MiB"),
        (96_000_000, "bytes", "91.6 MiB"),
        (0.0331, "reqps", "0.0331 req/s"),
        (8123, "short", "8.12 K"),
        (1, "none", "1"),
    ],
)
def test_a_value_has_three_digits_and_its_unit(value: float, unit: str, shown: str) -> None:
    assert scales.text(value, unit) == shown


@pytest.mark.parametrize(
    ("largest", "unit", "marks"),
    [
        (0, "short", ["0", "0.25"]),
        (1, "short", ["0", "0.25", "0.5", "0.75", "1"]),
        (3.1, "reqps", ["0 req/s", "1 req/s", "2 req/s", "3 req/s", "4 req/s"]),
        (0.07, "s", ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms"]),
        (75, "s", ["0 s", "20 s", "40 s", "60 s", "80 s"]),
        (90 << 20, "bytes", ["0 MiB", "32 MiB", "64 MiB", "96 MiB"]),
    ],
)
def test_an_axis_has_marks_of_one_unit_up_to_the_largest_value(largest: float, unit: str, marks: list[str]) -> None:
    made = scales.scale(largest, unit)

    assert [words for _, words in made.marks] == marks
    assert made.marks[-1][0] == made.top >= largest


@pytest.mark.parametrize("unit", ["none", "short", "reqps", "bytes", "s"])
@pytest.mark.parametrize("exponent", range(-4, 9))
def test_an_axis_has_few_marks(unit: str, exponent: int) -> None:
    for digits in (1, 1.01, 2, 3.33, 4.99, 7, 9.99):
        made = scales.scale(digits * 10.0**exponent, unit)

        assert 2 <= len(made.marks) <= 6
        assert made.top >= digits * 10.0**exponent
