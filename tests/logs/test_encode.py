import pytest

from shim.logs.decode import Record
from shim.logs.encode import encode, read_head


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("hello\n", b"T stdout F hello\n"),
        ("\n", b"T stdout F \n"),
        ("piece", b"T stdout P piece\n"),
        ("", b"T stdout P \n"),
        ("tty\r\n", b"T stdout F tty\r\n"),
        ("\u2028\x85\x0b\n", "T stdout F \u2028\x85\x0b\n".encode()),
        ("a\nb\n", b"T stdout F a\nT stdout F b\n"),
        ("a\n\nb", b"T stdout F a\nT stdout F \nT stdout P b\n"),
    ],
)
def test_a_record(log: str, line: bytes) -> None:
    assert encode([Record(log, "stdout", "T")]) == line


def test_a_newline_inside_a_record_changes_no_other() -> None:
    records = [Record("a\nb\n", "stdout", "T"), Record("", "stderr", "T"), Record("c\n", "stderr", "T")]
    assert encode(records) == b"T stdout F a\nT stdout F b\nT stderr P \nT stderr F c\n"


@pytest.mark.parametrize(
    "line", [b"", b"hello world of mine", b"T stdin F x", b"T stdout X y", b"T stdout F", b"\xff stdout F x"]
)
def test_what_is_no_line_of_a_log(line: bytes) -> None:
    assert read_head(line) is None
