"""Docker's log files of both drivers, and existing CRI logs."""

import gzip
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from shim.config.model import DockerLogDriver
from shim.logs.drivers import FORMATS
from shim.logs.follow import Counts, Follower
from shim.logs.format import CHUNK, Format
from shim.logs.protocol import Follow
from shim.logs.resume import written_tail
from tests.fuzz.target import Run, Target
from tests.logs.docker import Output, at, json_line, local_record

CRI_LINE = re.compile(rb"[^\n]* (?:stdout|stderr) [FP] [^\n]*")
"""A time may be damaged too."""

OUTPUTS = (
    Output(b"one\n", "stdout", at(1)),
    Output(b"two \xc3\xbc <\n", "stderr", at(2)),
    Output(b"x" * 300, "stdout", at(3), 1),
    Output(b"end\n", "stdout", at(3), 2),
    Output(b"\n", "stdout", at(3)),
)
JSON_WORDS = (
    b'{"log":"',
    b'\\n","stream":"stdout"',
    b'"time":"2026-11-21T02:32:06Z"}\n',
    b"\\u0000",
    b"\\ud800",
    b"}\n",
)
LOCAL_WORDS = (b"\n\x06stdout", b"\n\x06stderr", b"\0\0\0\x10", b"\xff\xff\xff\xff", b"\x20\x01\x2a")


def _parse(of: Format, data: bytes) -> None:
    end = of.whole(data)
    assert 0 <= end <= len(data)
    assert end or len(data) < CHUNK
    read = of.lines(data[:end])
    lines = read.text.split(b"\n")
    assert lines.pop() == b""
    assert all(CRI_LINE.fullmatch(line) for line in lines)
    assert len(lines) >= read.count
    offset = 0
    for stop, _ in of.each(data[:end]):
        assert offset < stop <= end
        offset = stop


@contextmanager
def _parsing(of: Format) -> Iterator[Run]:
    fd = os.memfd_create("fuzz")

    def run(data: bytes) -> None:
        _parse(of, data)
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        before = len(data)
        for start, group in of.backwards(fd):
            assert 0 <= start < before
            assert data[start:].startswith(group)
            before = start

    try:
        yield run
    finally:
        os.close(fd)


@contextmanager
def _following(driver: DockerLogDriver) -> Iterator[Run]:
    """Copy a whole log, and continue with a second copy: both end, and write valid records.

    Lines with damaged times may be repeated, because their position in the written log is unknown.
    """
    with tempfile.TemporaryDirectory() as directory:
        docker = Path(FORMATS[driver].path(f"{directory}/c"))
        docker.parent.mkdir(parents=True)
        cri = Path(directory) / "cri" / "0.log"
        order = Follow(id="c", docker=str(docker), cri=str(cri), driver=driver)

        def run(data: bytes) -> None:
            cri.unlink(missing_ok=True)
            docker.write_bytes(data)
            for _ in range(2):
                follower = Follower(order, Counts())
                try:
                    follower.open()
                    steps = 0
                    while follower.step():
                        steps += 1
                        assert steps < 1000
                finally:
                    follower.close()
                written = cri.read_bytes()
            assert all(CRI_LINE.fullmatch(line) for line in written.split(b"\n")[:-1])

        yield run


@contextmanager
def _tails() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "0.log"
        rotated = Path(directory) / "0.log.20261121.gz"

        def run(data: bytes) -> None:
            current, _, old = data.partition(b"\0")
            log.write_bytes(current)
            rotated.write_bytes(old)
            fd = os.open(log, os.O_RDONLY)
            try:
                written_tail(fd, log)
            finally:
                os.close(fd)

        yield run


def _target(driver: DockerLogDriver, corpus: list[bytes], words: tuple[bytes, ...]) -> tuple[Target, Target]:
    record = RECORDS[driver](OUTPUTS[0])
    enormous = [
        lambda: bytes(4 * CHUNK),
        lambda: record * 9 + b"x" * (4 * CHUNK) + b"\n" + record,
        lambda: record[: len(record) // 2] + record * 20_000,
    ]
    parse = Target(
        name=f"logs-{driver}",
        corpus=corpus,
        words=words,
        declared=(),
        open=partial(_parsing, FORMATS[driver]),
        enormous=enormous,
        memory=48 << 20,
    )
    follow = Target(
        name=f"logs-follow-{driver}",
        corpus=corpus,
        words=words,
        declared=(OSError,),
        open=partial(_following, driver),
        enormous=enormous,
        memory=48 << 20,
        seconds=20.0,
    )
    return parse, follow


RECORDS = {"json-file": json_line, "local": local_record}
TARGETS = (
    *_target("json-file", [b"".join(map(json_line, OUTPUTS)), json_line(OUTPUTS[0]) * 20], JSON_WORDS),
    *_target("local", [b"".join(map(local_record, OUTPUTS)), local_record(OUTPUTS[0]) * 20], LOCAL_WORDS),
    Target(
        name="logs-cri",
        corpus=[
            b"2026-11-21T02:32:06Z stdout F one\n2026-11-21T02:32:06Z stdout P tw\0"
            + gzip.compress(b"2026 stdout F x\n"),
            b"2026-11-21T02:32:06.000000001Z stderr P a\n" * 20 + b"\0",
        ],
        words=(b"2026-11-21T02:32:06Z", b" stdout ", b" F ", b" P ", gzip.compress(b"x" * 999), b"\n"),
        declared=(OSError,),
        open=_tails,
        memory=32 << 20,
        seconds=20.0,
        enormous=[lambda: b"\0" + gzip.compress(bytes(100 << 20)), lambda: b"x" * (8 << 20)],
    ),
)
