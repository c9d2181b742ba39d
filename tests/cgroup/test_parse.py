from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.cgroup import parse
from shim.cgroup.figures import Io, Pressure, Psi


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"42\n", 42),
        (b"0", 0),
        (b"9223372036854775808\n", 1 << 63),
        (b"18446744073709551616\n", (1 << 64) - 1),
        (b"-1\n", None),
        (b"max\n", None),
        (b"", None),
        (b"12x", None),
        (None, None),
    ],
    ids=["number", "zero", "2^63", "beyond 64 bits", "negative", "max", "empty", "garbage", "missing"],
)
def test_number_parses_a_count(text: bytes | None, expected: int | None) -> None:
    assert parse.number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"max\n", None), (b"9223372036854771712\n", None), (b"9223372036854775807\n", None), (b"4096\n", 4096)],
    ids=["v2", "v1", "2^63-1", "some"],
)
def test_limit_reads_both_versions(text: bytes, expected: int | None) -> None:
    assert parse.limit(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"some avg10=1.50 avg60=0.00 avg300=0.25 total=7\n", Psi(Pressure(7000, 1.5, 0.0, 0.25), None)),
        (b"full avg10=1.50 avg60=0.00 avg300=0.25 total=7\n", None),
        (b"some avg10=1.50 avg60=x avg300=0.25 total=7\n", None),
        (b"some avg10=1.50\n", None),
        (b"some\n", None),
        (b"", None),
        (None, None),
    ],
    ids=["no full", "no some", "no number", "cut", "bare", "empty", "missing"],
)
def test_psi_parses_pressure_files(text: bytes | None, expected: Psi | None) -> None:
    assert parse.psi(text) == expected


def test_blkio_parses_both_tables() -> None:
    found = parse.blkio(
        byte_lines=b"8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 1\n8:0 Async 2\n8:0 Total 12288\nTotal 12288\n",
        operation_lines=b"8:0 Read 1\n8:0 Write 2\n8:16 Write 5\nTotal 8\n",
    )

    assert found == [
        Io(major=8, minor=0, read_bytes=4096, write_bytes=8192, reads=1, writes=2),
        Io(major=8, minor=16, read_bytes=0, write_bytes=0, reads=0, writes=5),
    ]


def test_the_higher_of_two_io_counters_is_reported() -> None:
    early = Io(major=8, minor=0, read_bytes=9, write_bytes=1, reads=3, writes=1)
    late = replace(early, read_bytes=2, reads=1)
    alone = replace(late, minor=16)

    assert parse.fullest([late, alone], [early]) == parse.fullest([early], [alone, late]) == [early, alone]
    assert parse.fullest([], []) == []


def test_an_incomplete_line_is_left_out() -> None:
    assert parse.flat(b"total_rss 4096\ntotal_inactive_file 12") == {b"total_rss": b"4096"}
    assert parse.flat(b"total_rss 4096\ntotal_inac") == {b"total_rss": b"4096"}


@given(st.binary(max_size=80))
def test_parsers_never_raise(text: bytes) -> None:
    parse.number(text)
    parse.flat(text)
    parse.psi(b"some " + text)
    assert isinstance(parse.io_stat(text), list)
    assert isinstance(parse.blkio(byte_lines=text, operation_lines=text), list)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"max\n", -1),
        (b"-1\n", -1),
        (b"9223372036854771712\n", -1),
        (b"4096\n", 4096),
        (b"0\n", 0),
        (b"", None),
        (b"x", None),
        (None, None),
    ],
)
def test_parse_limit_reads_both_versions(text: bytes | None, expected: int | None) -> None:
    assert parse.parse_limit(text) == expected


@pytest.mark.parametrize(("text", "expected"), [(b"0-1\n", "0-1"), (b"\n", ""), (b"\xff\n", "\ufffd"), (None, None)])
def test_line_decodes_and_strips(text: bytes | None, expected: str | None) -> None:
    assert parse.line(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-2,8", {0, 1, 2, 8}), ("0", {0}), ("", set()), ("x", set()), ("2-1", set()), ("0-999999999", set())],
)
def test_numbers_parses_ranges(text: str, expected: set[int]) -> None:
    assert parse.numbers(text) == expected
