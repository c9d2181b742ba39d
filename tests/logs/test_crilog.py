import pytest

from shim.logs.crilog import Written, first_time, last_time, read_head


def test_the_head_of_a_line() -> None:
    head = read_head(b"2026-11-21T02:32:06.5Z stderr P a b")
    assert head == Written("2026-11-21T02:32:06.5Z", "stderr")
    assert head.prefix == b"2026-11-21T02:32:06.5Z stderr "


@pytest.mark.parametrize(
    "line", [b"", b"hello world of mine", b"T stdin F x", b"T stdout X y", b"T stdout F", b"\xff stdout F x"]
)
def test_what_is_no_line_of_a_log(line: bytes) -> None:
    assert read_head(line) is None


@pytest.mark.parametrize("between", [b"", b"T stderr F  x \n"], ids=["two", "three"])
def test_times_of_the_first_and_the_last_line(between: bytes) -> None:
    lines = b"T1 stdout F a\n" + between + b"T2 stdout P b c\n"
    assert (first_time(lines), last_time(lines)) == ("T1", "T2")
    assert last_time(b"T1 stdout F \n") == "T1"
