import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.api.docker.log_entry_pb2 import LogEntry
from shim.logs.format import CHUNK, Lines
from shim.logs.local_file import each, lines, whole
from tests.logs.docker import Output, at, cri, framed, local_record

ENGINE = bytes.fromhex(
    "000000180a0673746465727210dbd3dda8a1e3fdf4181a04657272ff00000018"
    "000000190a067374646f757410c3e5e1a8a1e3fdf4181a0568656c6c6f00000019"
)
"""The records of `printf 'err\\377\\n' >&2; printf 'hello\\n'` on Engine 20.10."""

OTHER = Output(b"something else\n", "stderr", at(6))
ALL_BYTES = bytes(range(256))

contents = st.binary(max_size=40).map(lambda content: content.replace(b"\n", b""))
outputs = st.lists(
    st.builds(
        Output,
        st.tuples(contents, st.booleans()).map(lambda part: part[0] + b"\n" * part[1]),
        st.sampled_from(["stdout", "stderr"]),
        st.integers(0, 999_999_999).map(at),
        st.sampled_from([0, 1, 10]),
    ),
    max_size=10,
)


def record(content: bytes = b"hello\n") -> bytes:
    return local_record(Output(content, "stdout", at(5)))


@pytest.mark.parametrize(
    "output",
    [
        Output(b"hello\n", "stdout", at(5)),
        Output(b"\n", "stderr", at(0)),
        Output(b"piece", "stdout", at(5), 1),
        Output(b"the last piece\n", "stdout", at(5), 2),
        Output(b"", "stdout", at(5), 1),
        Output(ALL_BYTES.replace(b"\n", b"") + b"\n", "stdout", at(120_000_000)),
        Output(b"\x06stdout...\n", "stdout", at(5)),
    ],
    ids=["line", "empty", "piece", "last-piece", "empty-piece", "all-bytes", "as-a-message-begins"],
)
def test_a_record_becomes_a_cri_line(output: Output) -> None:
    data = local_record(output)
    assert lines(data) == Lines(cri(output), 1)
    assert list(each(data)) == [(len(data), cri(output))]
    assert whole(data) == len(data)


def test_bytes_of_a_real_engine_are_read() -> None:
    assert lines(ENGINE).text.splitlines(keepends=True) == [
        b"2026-11-21T05:06:57.878919643Z stderr F err\xff\n",
        b"2026-11-21T05:06:57.878987459Z stdout F hello\n",
    ]


def test_unknown_fields_are_ignored() -> None:
    message = LogEntry(source="stdout", time_nano=1_000_000_000, line=b"a").SerializeToString()
    assert lines(framed(message + b"\x32\x05attrs")).text == b"1970-01-01T00:00:01Z stdout F a\n"


@pytest.mark.parametrize(
    "torn",
    [
        record()[:1],
        record()[:4],
        record()[:9],
        record()[:-5],
        record()[:-4],
        record()[:-1],
        record()[1:],
        record()[5:],
        b"\0" * 100,
        framed(b""),
        framed(b"\n\x05stdin\x10\x01"),
        framed(b"\n\x06stdout\x1a\x7f"),
        framed(b"\xff\xff\xff"),
        b"\xff" * 300,
        b"\x7f\xff\xff\xff" + record()[4:],
    ],
)
def test_an_unreadable_record_does_not_affect_other_records(torn: bytes) -> None:
    other = local_record(OTHER)
    data = record() + torn + other + other
    read = lines(data)
    assert read.text.startswith(cri(Output(b"hello\n", "stdout", at(5))))
    assert read.text.endswith(cri(OTHER) * 2)
    assert (read.count, read.unreadable) == (3, 1)
    assert [end for end, _ in each(data)] == [len(record()), len(data) - len(other), len(data)]
    assert whole(data) == len(data)


@pytest.mark.parametrize(("size", "unreadable"), [(128 << 10, 2), ((128 << 10) + 1, 1)])
def test_a_size_larger_than_any_message_does_not_begin_a_record(size: int, unreadable: int) -> None:
    begin = struct.pack(">I", size) + b"\n\x06stdout" + bytes(20)
    assert lines(b"torn" + begin + record() * 2).unreadable == unreadable


def test_a_record_torn_before_its_second_size_does_not_affect_the_next() -> None:
    data = record(b"first\n")[:-4] + record(b"other\n") + record(b"third\n")
    found = [line.split()[-1] for _, line in each(data)]
    assert found == [b"first", b"other", b"third"]
    assert lines(data).text == b"".join(line for _, line in each(data))


def test_a_torn_record_does_not_swallow_later_records() -> None:
    """The size of the torn record happens to span a later record and to end at an equal size."""
    inner = record(b"inside\n")
    content = b"x" * len(inner) + b"torn"
    long = record(content + b"\n")
    data = long[: -4 - len(inner)] + inner + long + inner
    size = struct.unpack_from(">I", data)[0]
    assert data[size + 4 : size + 8] == data[:4]

    assert [line.split()[-1] for _, line in each(data)] == [b"inside", content, b"inside"]
    assert lines(data) == Lines(b"".join(line for _, line in each(data)), 3, unreadable=1)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (record()[:3], 0),
        (record()[:-1], 0),
        (record() + record()[:3], len(record())),
        (record() + record()[:-1], len(record())),
        (record()[:9] + record(), 9 + len(record())),
        (record()[:9] + record()[:-1], 9),
        (b"\0" * (CHUNK - 1), 0),
        (b"\0" * CHUNK, CHUNK - 9),
        (b"\0" * (CHUNK - 20) + record()[:20], CHUNK - 20),
        (record()[:-1] + b"\xff" * (CHUNK - len(record()) + 1), CHUNK - 9),
        (b"\x7f\xff\xff\xff" + record()[4:] + b"\0" * CHUNK, CHUNK + len(record()) - 9),
    ],
    ids=[
        "empty",
        "half-a-size",
        "half",
        "one-and-half-a-size",
        "one-and-a-half",
        "behind-a-torn-one",
        "half-behind-a-torn-one",
        "short-rubbish",
        "rubbish",
        "half-behind-rubbish",
        "rubbish-behind-a-torn-one",
        "too-long",
    ],
)
def test_whole_returns_the_length_of_whole_records(data: bytes, count: int) -> None:
    assert whole(data) == count


@given(outputs)
def test_any_output_is_read_back(written: list[Output]) -> None:
    data = b"".join(map(local_record, written))
    assert lines(data) == Lines(b"".join(map(cri, written)), len(written))


@given(outputs, st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1, exclude_max=True)), max_size=4))
def test_all_intact_records_are_read_whichever_records_are_torn(
    written: list[Output], cuts: list[tuple[int, float]]
) -> None:
    torn = {number: share for number, share in cuts if number < len(written)}
    data, kept = b"", []
    for number, output in enumerate(written):
        whole_record = local_record(output)
        data += whole_record[: int(torn.get(number, 1) * len(whole_record))]
        if number not in torn:
            kept.append(cri(output))
    ready = data[: whole(data)]
    found = [line for _, line in each(ready)]

    assert lines(ready).text == b"".join(found)
    assert all(line in map(cri, written) for line in found)
    rest = iter(found)
    assert all(line in rest for line in kept)  # in order
