import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shim.base.times import ns_from_rfc3339
from shim.config.model import DockerLogDriver
from shim.logs.resume import Position, find_position, overlap, written_tail
from shim.logs.sink import open_log
from shim.logs.source import generations
from tests.logs.docker import DockerLog, at, cri

PIECE = "x" * 100


@pytest.fixture
def docker(tmp_path: Path, driver: DockerLogDriver) -> DockerLog:
    return started(tmp_path, driver)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def started(directory: Path, driver: DockerLogDriver) -> DockerLog:
    made = DockerLog(directory / "docker", driver, max_file=3)
    made.start()
    return made


@contextmanager
def closing(fds: list[int]) -> Iterator[list[int]]:
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def position(docker: DockerLog, path: Path, *, since: int = 0) -> Position:
    with closing([open_log(path)]) as (log,), closing(generations(docker.path)) as files:
        return find_position(files, written_tail(log, path), file_format=docker.format, since=since)


def rest(docker: DockerLog, path: Path) -> bytes:
    """Return the lines that are copied from the position on."""
    found = position(docker, path)
    with closing(generations(docker.path)) as files:
        data = [os.pread(fd, 1 << 30, 0) for fd in files]
    left = data[found.which][found.offset :] + b"".join(data[found.which + 1 :])
    return docker.format.lines(left).text


def test_an_empty_log_starts_at_the_beginning_of_docker_s_files(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 5)
    assert rest(docker, path) == docker.as_cri()


def test_copying_continues_after_the_last_line(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 1000)
    whole = docker.as_cri().splitlines(keepends=True)
    for count in (1, 2, 500, 999, 1000):
        path.write_bytes(b"".join(whole[:count]))
        assert rest(docker, path) == b"".join(whole[count:])


def test_the_last_line_may_be_in_a_rotated_file(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 10)
    whole = docker.as_cri().splitlines(keepends=True)
    older, newer = path.with_name("0.log.20260101-1"), path.with_name("0.log.20260101-2")
    older.write_bytes(b"".join(whole[:3]))
    newer.write_bytes(b"".join(whole[3:6]) + b"2026-11-21T02:32:06 stdout F torn")
    os.utime(older, ns=(1, 1))
    path.with_name("0.log.20260101-0.gz").write_bytes(b"compressed")
    path.with_name("00.log").write_bytes(b"another's")

    assert rest(docker, path) == b"".join(whole[6:])


def test_the_last_line_may_be_in_a_compressed_file(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 10)
    whole = docker.as_cri().splitlines(keepends=True)
    older, newer = path.with_name("0.log.20260101-1.gz"), path.with_name("0.log.20260101-2.gz")
    older.write_bytes(gzip.compress(b"".join(whole[:3])))
    newer.write_bytes(gzip.compress(b"".join(whole[3:6])))
    os.utime(older, ns=(1, 1))

    assert rest(docker, path) == b"".join(whole[6:])


def test_a_compressed_file_counts_as_older_than_other_files(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 10)
    whole = docker.as_cri().splitlines(keepends=True)
    path.with_name("0.log.20260101-2").write_bytes(b"".join(whole[3:6]))
    # The kubelet compresses a rotated file when it rotates the next file.
    path.with_name("0.log.20260101-1.gz").write_bytes(gzip.compress(b"".join(whole[:3])))

    assert rest(docker, path) == b"".join(whole[6:])


def test_the_run_of_pieces_may_begin_in_a_compressed_file(docker: DockerLog, path: Path) -> None:
    docker.write("before\n")
    for _ in range(20):
        docker.write(PIECE, time=at(77))
    whole = docker.as_cri().splitlines(keepends=True)
    path.with_name("0.log.1.gz").write_bytes(gzip.compress(b"".join(whole[:8])))
    for count in range(8, len(whole)):
        path.write_bytes(b"".join(whole[8:count]))
        assert rest(docker, path) == b"".join(whole[count:])


def test_pieces_with_the_same_time_and_content_are_matched_by_their_number(docker: DockerLog, path: Path) -> None:
    """All pieces of a line have its time, and here also the same content. Similar lines of stderr lie between them."""
    docker.write("before\n")
    for number in range(20):
        docker.write(PIECE, time=at(77))
        if number % 3 == 0:
            docker.write(" stdout F between\n", stream="stderr")
    docker.write("end\n", time=at(77))
    docker.write("after\n")
    whole = docker.as_cri().splitlines(keepends=True)
    for count in range(len(whole)):
        path.write_bytes(b"".join(whole[:count]))
        assert rest(docker, path) == b"".join(whole[count:])


def test_the_run_of_pieces_may_span_rotated_files_on_both_sides(docker: DockerLog, path: Path) -> None:
    docker.write("before\n")
    for number in range(20):
        docker.write(PIECE, time=at(77))
        if number in (4, 9):
            docker.rotate()
    whole = docker.as_cri().splitlines(keepends=True)
    for count in range(4, len(whole)):
        path.with_name("0.log.1").write_bytes(b"".join(whole[:4]))
        path.write_bytes(b"".join(whole[4:count]))
        assert rest(docker, path) == b"".join(whole[count:])


def test_a_gap_in_docker_s_files_is_reported(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 10)
    path.write_bytes(b"".join(docker.as_cri().splitlines(keepends=True)[:4]))
    last = docker.written[3].time
    for _ in range(3):
        docker.rotate()
    docker.lines(10, 12)

    assert position(docker, path) == Position(2, 0, (last, docker.written[10].time))
    assert rest(docker, path) == b"".join(map(cri, docker.written[10:]))


def test_the_log_of_an_earlier_container_is_appended_to(docker: DockerLog, path: Path) -> None:
    path.write_bytes(b"2020-01-01T00:00:00Z stdout F of another\n")
    docker.lines(0, 3)

    assert position(docker, path, since=ns_from_rfc3339(at(1))) == Position(0, 0)


def test_a_log_newer_than_docker_s_records_belongs_to_another_container(docker: DockerLog, path: Path) -> None:
    path.write_bytes(b"2030-01-01T00:00:00Z stdout F of another\n")
    docker.lines(0, 3)

    assert position(docker, path) == Position(0, 0)


@pytest.mark.parametrize("notes", [b"seen by ops\n", b"seen by ops\n" * 50_000, b""], ids=["short", "long", "empty"])
def test_other_text_in_rotated_files_is_skipped(docker: DockerLog, path: Path, notes: bytes) -> None:
    docker.lines(0, 10)
    whole = docker.as_cri().splitlines(keepends=True)
    rotated = path.with_name("0.log.20260101-1")
    rotated.write_bytes(b"".join(whole[:6]))
    os.utime(rotated, ns=(1, 1))
    path.with_name("0.log.notes").write_bytes(notes)
    path.with_name("0.log.notes.gz").write_bytes(gzip.compress(notes))
    path.with_name("0.log.d").mkdir()

    assert rest(docker, path) == b"".join(whole[6:])


def test_text_of_others_after_the_last_line_is_skipped(docker: DockerLog, path: Path) -> None:
    docker.lines(0, 10)
    whole = docker.as_cri().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:6]) + b"seen stdout\nby ops\n")

    assert rest(docker, path) == b"".join(whole[6:])


def test_a_file_without_cri_lines_gives_no_position(docker: DockerLog, path: Path) -> None:
    path.write_bytes(b"hello world\n")
    docker.lines(0, 3)

    assert position(docker, path) == Position(0, 0)


@pytest.mark.parametrize(
    ("written", "held", "count"),
    [
        ([1, 1, 1], [1, 1, 1, 1], 3),
        ([1, 2, 1], [1, 2, 1, 2], 3),
        ([1, 2, 3], [3, 4], 1),
        ([1, 2], [3, 4], 0),
        ([], [1], 0),
        ([1], [], 0),
    ],
    ids=["same", "in-turn", "dropped", "nothing-common", "none-written", "none-held"],
)
def test_overlap_is_the_longest_prefix_that_is_a_suffix(written: list[int], held: list[int], count: int) -> None:
    assert overlap(written, held) == count


Stream = Literal["stdout", "stderr"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_copying_continues_wherever_writing_stopped(driver: DockerLogDriver, data: st.DataObject) -> None:
    """Any output, any number of bytes already in the log, and any rotation of both sides that loses nothing."""
    with TemporaryDirectory() as name:
        docker, path = started(Path(name), driver), Path(name, "0.log")
        steps = data.draw(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(0, 3)), max_size=40))
        open_line: dict[str, str] = {}
        rotations = 0
        for stream, kind in steps:
            if kind == 3 and rotations < 2:
                docker.rotate()
                rotations += 1
            record = docker.write(PIECE if kind else "end\n", stream=stream, time=open_line.get(stream, ""))
            open_line[stream] = record.time if kind else ""
        whole = docker.as_cri()
        first = data.draw(st.integers(0, len(whole)))
        first = whole.rfind(b"\n", 0, first) + 1
        stop = data.draw(st.integers(first, len(whole)))
        path.with_name("0.log.1").write_bytes(whole[:first])
        path.write_bytes(whole[first:stop])
        kept = path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1]
        path.write_bytes(kept)

        assert whole[:first] + kept + rest(docker, path) == whole
