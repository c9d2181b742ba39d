"""Properties of the file formats of all drivers."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shim.config.model import DockerLogDriver
from shim.logs import lines as blocks
from shim.logs.crilog import read_head
from shim.logs.drivers import FORMATS, docker_log_path, driver_of, log_path
from shim.logs.format import Lines
from tests.logs.docker import DockerLog, Output, at, cri

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20)
outputs = st.lists(
    st.builds(
        Output,
        st.tuples(contents, st.booleans()).map(lambda part: (part[0] + "\n" * part[1]).encode()),
        st.sampled_from(["stdout", "stderr"]),
        st.integers(0, 999_999_999).map(at),
        st.sampled_from([0, 2, 10]),
    ),
    max_size=12,
)


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("json-file", "/var/lib/docker/containers/c1/c1-json.log"),
        ("local", "/var/lib/docker/containers/c1/local-logs/container.log"),
    ],
    ids=["json-file", "local"],
)
def test_the_path_of_docker_s_file(named: DockerLogDriver, path: str) -> None:
    assert docker_log_path(named, root="/var/lib/docker", container_id="c1") == path


def test_every_configurable_driver_has_a_format() -> None:
    assert set(FORMATS) == set(get_args(DockerLogDriver))


@pytest.mark.parametrize(
    ("docker_type", "named"),
    [*((named, named) for named in get_args(DockerLogDriver)), ("", "json-file"), ("journald", "json-file")],
)
def test_driver_of_returns_the_driver_of_a_container(docker_type: str, named: DockerLogDriver) -> None:
    assert driver_of(docker_type) == named


@pytest.mark.parametrize(
    ("docker_type", "reported", "path"),
    [
        ("json-file", "/d/c1-json.log", "/d/c1-json.log"),
        ("json-file", "", ""),
        ("local", "", "/root/containers/c1/local-logs/container.log"),
        ("local", "/d/container.log", "/d/container.log"),
    ],
)
def test_a_path_that_docker_does_not_report_is_computed(docker_type: str, reported: str, path: str) -> None:
    assert log_path(docker_type, reported=reported, root=lambda: "/root", container_id="c1") == path


@SETTINGS
@given(outputs, st.data())
def test_the_result_does_not_depend_on_how_the_bytes_are_split(
    driver: DockerLogDriver, written: list[Output], data: st.DataObject
) -> None:
    docker = DockerLog(Path("unused"), driver)
    whole = b"".join(map(docker.record, written))
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=6).map(sorted))
    text, held, count = b"", b"", 0
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        held += whole[begin:end]
        ready = docker.format.whole(held)
        read = docker.format.lines(held[:ready])
        held = held[ready:]
        text, count = text + read.text, count + read.count
        assert read.unreadable == 0
    assert (text, count, held) == (b"".join(map(cri, written)), len(written), b"")


@SETTINGS
@given(outputs)
def test_each_yields_every_record(driver: DockerLogDriver, written: list[Output]) -> None:
    docker = DockerLog(Path("unused"), driver)
    records = list(map(docker.record, written))
    ends = [sum(map(len, records[: count + 1])) for count in range(len(records))]
    whole = b"".join(records)
    assert list(docker.format.each(whole)) == list(zip(ends, map(cri, written), strict=True))
    assert docker.format.lines(whole) == Lines(b"".join(map(cri, written)), len(written))


@SETTINGS
@given(outputs, st.data())
def test_backwards_yields_every_whole_record_once(
    driver: DockerLogDriver, monkeypatch: pytest.MonkeyPatch, written: list[Output], data: st.DataObject
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 256)  # larger than a record, small enough for many blocks
    with TemporaryDirectory() as name:
        docker = DockerLog(Path(name), driver)
        docker.start()
        for output in written:
            docker.append(docker.record(output))
        size = docker.path.stat().st_size
        if written:
            last = docker.record(written[-1])
            docker.append(last[: data.draw(st.integers(0, len(last) - 1))])
        with docker.path.open("rb") as file:
            groups = list(docker.format.backwards(file.fileno()))
        content = docker.path.read_bytes()

    assert b"".join(group for _, group in reversed(groups)) == content[:size]
    assert all(content[start:].startswith(group) for start, group in groups)
    lines = b"".join(line for _, group in reversed(groups) for _, line in docker.format.each(group))
    assert lines == b"".join(map(cri, written))


@SETTINGS
@given(outputs)
def test_resume_marks_are_in_the_records(driver: DockerLogDriver, written: list[Output]) -> None:
    docker = DockerLog(Path("unused"), driver)
    for output in written:
        head = read_head(cri(output)[:-1])
        assert head is not None
        marks = docker.format.marks(head)
        for other in written:
            assert (marks.stream in docker.record(other)) == (other.stream == output.stream)
            assert other.time != output.time or marks.time in docker.record(other)
