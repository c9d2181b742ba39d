"""The contract of every Engine: files of a container. See `tests.engine.contract`."""

import io
import tarfile
from collections.abc import Iterator

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, NotFound
from shim.engine.answers import PathKind, PathStat
from tests.engine.contract import UNKNOWN, Subject

PASSWD = "/etc/passwd"


def _seen(subject: Subject, path: str) -> PathStat | None:
    return subject.engine.stat_path(subject.created(), path)


def _content(archive: Iterator[bytes]) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as tar:
        reader = tar.extractfile(tar.getmembers()[0])
        return reader.read() if reader else b""


def test_a_file_of_a_created_container_is_read(subject: Subject) -> None:
    container_id = subject.created()
    stat = subject.engine.stat_path(container_id, PASSWD)
    with subject.engine.archive(container_id, PASSWD) as archive:
        content = _content(archive)

    assert stat is not None
    assert (stat.kind, stat.size) == (PathKind.FILE, len(content))
    assert content.startswith(b"root:x:0:0:")


@pytest.mark.parametrize("path", ["/", "/etc", "/etc/"])
def test_a_directory_is_reported_as_a_directory(subject: Subject, path: str) -> None:
    stat = _seen(subject, path)

    assert stat is not None
    assert stat.kind is PathKind.DIRECTORY


def test_a_link_is_reported_with_its_target(subject: Subject) -> None:
    stat = _seen(subject, "/bin/sh")

    assert stat is not None
    assert (stat.kind, stat.link_target) == (PathKind.LINK, "/bin/busybox")


@pytest.mark.parametrize("path", ["/nowhere", "/etc/nowhere/deeper"])
def test_a_missing_path_is_none_or_not_found(subject: Subject, path: str) -> None:
    container_id = subject.created()

    assert subject.engine.stat_path(container_id, path) is None
    with pytest.raises(NotFound), subject.engine.archive(container_id, path):
        pytest.fail("it was read")


def test_an_unknown_container_is_not_taken_for_a_missing_file(subject: Subject) -> None:
    with pytest.raises(NotFound):
        subject.engine.stat_path(UNKNOWN, PASSWD)
    with pytest.raises(NotFound), subject.engine.archive(UNKNOWN, PASSWD):
        pytest.fail("it was read")


def test_an_archive_can_be_left_unread(subject: Subject) -> None:
    container_id = subject.created()
    with subject.engine.archive(container_id, "/bin"):
        pass

    subject.engine.remove_container(container_id)


def test_no_file_is_read_for_a_client_that_has_left(subject: Subject) -> None:
    container_id = subject.created()
    scope = Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled):
        subject.engine.stat_path(container_id, PASSWD)
    with deadline.entered(scope), pytest.raises(Cancelled), subject.engine.archive(container_id, PASSWD):
        pytest.fail("it was read")
