import pytest

from shim.logs.crilog import LineHead, first_time, last_time, read_head


def test_read_head_returns_time_and_stream() -> None:
    head = read_head(b"2026-11-21T02:32:06.5Z stderr P a b")
    assert head == LineHead("2026-11-21T02:32:06.5Z", "stderr")
    assert head.prefix == b"2026-11-21T02:32:06.5Z stderr "


@pytest.mark.parametrize(
    "line", [b"", b"hello world of mine", b"T stdin F x", b"T stdout X y", b"T stdout F", b"\xff stdout F x"]
)
def test_read_head_rejects_other_text(line: bytes) -> None:
    assert read_head(line) is None


@pytest.mark.parametrize("between", [b"", b"T stderr F  x \n"], ids=["two", "three"])
def test_first_time_and_last_time(between: bytes) -> None:
    lines = b"T1 stdout F a\n" + between + b"T2 stdout P b c\n"
    assert (first_time(lines), last_time(lines)) == ("T1", "T2")
    assert last_time(b"T1 stdout F \n") == "T1"
