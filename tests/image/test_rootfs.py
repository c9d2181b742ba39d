"""Inspections of images: the files that they read, and their cleanup."""

import io
import itertools
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from shim.base import deadline
from shim.base.deferred_checks import DeferredChecks
from shim.domain import labels, names
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId
from shim.engine.answers import PathKind
from shim.engine.errors import RemovalInProgress
from shim.image.rootfs import ImageFiles, file_from_tar, inspect_rootfs, remove_leftovers
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_files import FakeFile
from tests.waits import wait_until

FILES: dict[str, FakeFile | bytes] = {
    "/etc/passwd": b"root:x:0:0\n",
    "/etc/loop-free": FakeFile(kind=PathKind.LINK, link="../usr/lib/real"),
    "/usr/lib/real": b"real",
    "/out": FakeFile(kind=PathKind.LINK, link="../../../../etc/passwd"),
    "/out-of-etc": FakeFile(kind=PathKind.LINK, link="/etc"),
    "/dangling": FakeFile(kind=PathKind.LINK, link="/nowhere"),
    "/pipe": FakeFile(kind=PathKind.OTHER),
    "/large": b"x" * 1001,
}


@pytest.fixture
def image(rt: Runtime, engine: FakeEngine) -> ImageId:
    return ImageId(engine.add_image("files:1", files=FILES))


def read(rt: Runtime, image: ImageId, path: str) -> bytes | None:
    return inspect_rootfs(rt, image_id=image, read=lambda files: files.read_file(path, limit=1000))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/etc/passwd", b"root:x:0:0\n"),
        ("//etc/./x/../passwd", b"root:x:0:0\n"),
        ("/etc/loop-free", b"real"),
        ("/out", b"root:x:0:0\n"),
        ("/out-of-etc/passwd", b"root:x:0:0\n"),
        ("/dangling", None),
        ("/nowhere", None),
    ],
)
def test_a_file_is_read_inside_of_the_image(rt: Runtime, image: ImageId, path: str, content: bytes | None) -> None:
    assert read(rt, image, path) == content


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/etc", "/etc of image sha256:.* is a directory, not a regular file"),
        ("/pipe", "/pipe of image sha256:.* is neither a file nor a directory, not a regular file"),
        ("/large", "/large of image sha256:.* has 1001 bytes, the limit is 1000"),
    ],
)
def test_irregular_or_large_file_is_refused_unread(
    rt: Runtime, engine: FakeEngine, image: ImageId, path: str, says: str
) -> None:
    with pytest.raises(FailedPrecondition, match=says):
        read(rt, image, path)

    assert not [call for call in engine.calls if call[0] == "archive"]


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/", ("/", PathKind.DIRECTORY)),
        ("usr/./lib/", ("/usr/lib", PathKind.DIRECTORY)),
        ("/out-of-etc", ("/etc", PathKind.DIRECTORY)),
        ("/out-of-etc/loop-free", ("/usr/lib/real", PathKind.FILE)),
        ("/out", ("/etc/passwd", PathKind.FILE)),
        ("/etc/passwd", ("/etc/passwd", PathKind.FILE)),
        ("/pipe", ("/pipe", PathKind.OTHER)),
        ("/etc/nowhere", None),
        ("/out-of-etc/nothing", None),
        ("/dangling", None),
        ("/etc/passwd/below", None),
    ],
)
def test_path_is_resolved_without_links(
    rt: Runtime, image: ImageId, path: str, resolved: tuple[str, PathKind] | None
) -> None:
    assert inspect_rootfs(rt, image_id=image, read=lambda files: files.resolve(path)) == resolved


def test_inspection_starts_nothing_and_leaves_nothing(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    read(rt, image, "/etc/passwd")

    assert {name for name, _ in engine.calls} >= {"create_container", "remove_container"}
    assert "start_container" not in {name for name, _ in engine.calls}
    assert engine.containers == {}


def test_view_ignores_inspection_containers(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    def read_passwd(files: ImageFiles) -> str:
        [made] = engine.containers.values()
        rt.view.refresh_container(made.id)
        return made.name

    with rt.view.subscribe() as changes:
        name = inspect_rootfs(rt, image_id=image, read=read_passwd)
        with deadline.bound(0), pytest.raises(DeadlineExceeded):
            changes.wait_next()

    assert not name.startswith(names.PREFIX)
    assert rt.view.containers() == ()
    assert rt.view.sandboxes() == ()


def test_failed_inspection_leaves_no_container(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    engine.fail_next("stat_path", ShimError("the disk is broken"))

    with pytest.raises(ShimError, match="the disk is broken"):
        read(rt, image, "/etc/passwd")
    assert engine.containers == {}


@pytest.mark.parametrize("method", ["create_container", "stat_path", "archive"])
def test_client_that_leaves_meanwhile_leaves_no_container(
    rt: Runtime, engine: FakeEngine, image: ImageId, method: str
) -> None:
    scope = deadline.Scope()

    def cancelled_read() -> bytes | None:
        with deadline.entered(scope):
            return read(rt, image, "/etc/passwd")

    with ThreadPoolExecutor(1) as pool, engine.held(method) as gate:
        reading = pool.submit(cancelled_read)
        gate.wait_entered()
        scope.cancel()
        if (
            method == "create_container"
        ):  # which must come to its end, or its container would not be known for the removal
            engine.release(gate)
        with pytest.raises(Cancelled):
            reading.result(10)
    assert engine.containers == {}


def test_client_that_has_left_creates_no_container(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled):
        read(rt, image, "/etc/passwd")

    assert "create_container" not in {name for name, _ in engine.calls}


def test_an_inspection_whose_container_is_pruned_is_repeated(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    pruned = threading.Event()

    def read_passwd(files: ImageFiles) -> bytes | None:
        if not pruned.is_set():
            pruned.set()
            engine.containers.clear()
        return files.read_file("/etc/passwd", limit=1000)

    assert inspect_rootfs(rt, image_id=image, read=read_passwd) == b"root:x:0:0\n"
    assert engine.containers == {}


def test_an_image_that_is_gone_is_not_found(rt: Runtime) -> None:
    with pytest.raises(NotFound):
        read(rt, ImageId("sha256:" + "9" * 64), "/etc/passwd")


def test_a_container_that_cannot_be_removed_is_removed_by_the_next_server(
    rt: Runtime, engine: FakeEngine, image: ImageId
) -> None:
    rt.deferred_checks.stop()  # this server ends before it can be removed
    engine.fail_next("remove_container", ShimError("device or resource busy"))
    assert read(rt, image, "/etc/passwd") is not None
    [left] = engine.containers.values()

    left.created = int((rt.server.started_at - 60) * 10**9)
    remove_leftovers(rt)

    assert engine.containers == {}


@pytest.fixture
def watching(rt: Runtime) -> Iterator[Runtime]:
    """The same node with frequent deferred checks."""
    deferred_checks = DeferredChecks(pause_seconds=0.01)
    yield replace(rt, deferred_checks=deferred_checks)
    deferred_checks.stop()


LOST = [Unavailable("docker cannot be reached: the connection was closed"), DeadlineExceeded("no answer in time")]


@pytest.mark.parametrize("lost", LOST, ids=["connection", "time"])
def test_a_container_whose_id_was_lost_is_removed(
    watching: Runtime, engine: FakeEngine, image: ImageId, lost: ShimError
) -> None:
    engine.lose_answer("create_container", lost)

    with pytest.raises(type(lost), match=str(lost)):
        read(watching, image, "/etc/passwd")

    wait_until(lambda: not watching.deferred_checks._checks)
    assert engine.containers == {}


@pytest.mark.parametrize("lost", LOST, ids=["connection", "time"])
def test_a_container_that_docker_makes_after_the_caller_left_is_removed(
    watching: Runtime, engine: FakeEngine, image: ImageId, lost: ShimError
) -> None:
    engine.fail_next("create_container", lost)
    with pytest.raises(type(lost), match=str(lost)):
        read(watching, image, "/etc/passwd")
    [name] = engine.calls_of("create_container")
    wait_until(lambda: len(engine.calls_of("remove_container")) > 2)
    assert watching.deferred_checks._checks

    engine.create_container(name=name, body={"Image": image})

    wait_until(lambda: not watching.deferred_checks._checks)
    assert engine.containers == {}


def test_refused_create_leaves_no_deferred_check(watching: Runtime, engine: FakeEngine, image: ImageId) -> None:
    engine.fail_next("create_container", ShimError("driver failed"))
    with pytest.raises(ShimError, match="driver failed"):
        read(watching, image, "/etc/passwd")

    assert not watching.deferred_checks._checks


def test_a_container_that_cannot_be_removed_now_is_removed_later(
    watching: Runtime, engine: FakeEngine, image: ImageId
) -> None:
    busy = ShimError("device or resource busy")
    engine.fail_next("remove_container", busy, busy, busy)

    assert read(watching, image, "/etc/passwd") is not None

    wait_until(lambda: not watching.deferred_checks._checks)
    assert engine.containers == {}


def test_container_removed_by_others_is_no_longer_checked(
    watching: Runtime, engine: FakeEngine, image: ImageId
) -> None:
    busy = ShimError("device or resource busy")
    engine.fail_next("remove_container", busy, busy, NotFound("no such container"))
    assert read(watching, image, "/etc/passwd") is not None

    wait_until(lambda: not watching.deferred_checks._checks)
    assert len(engine.calls_of("remove_container")) == 3


def test_removal_in_progress_proves_the_create(watching: Runtime, engine: FakeEngine, image: ImageId) -> None:
    gone = NotFound("no such container")
    engine.fail_next("remove_container", gone, RemovalInProgress("removal is in progress"), gone)
    engine.fail_next("create_container", LOST[0])
    with pytest.raises(Unavailable):
        read(watching, image, "/etc/passwd")

    wait_until(lambda: not watching.deferred_checks._checks)
    assert len(engine.calls_of("remove_container")) == 3


def test_leftovers_of_an_earlier_server_are_removed(watching: Runtime, engine: FakeEngine, image: ImageId) -> None:
    made = engine.create_container(
        name=names.inspection_name(), body={"Image": image, "Labels": {labels.INSPECTION: "rootfs"}}
    )
    engine.containers[made].created = int((watching.server.started_at - 60) * 10**9)
    engine.fail_next("remove_container", Unavailable("docker cannot be reached"))

    remove_leftovers(watching)

    wait_until(lambda: not watching.deferred_checks._checks)
    assert engine.containers == {}


def test_only_containers_of_earlier_inspections_are_removed(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    def made(name: str, **tags: str) -> str:
        return engine.create_container(name=name, body={"Image": image, "Labels": tags})

    before = int((rt.server.started_at - 60) * 10**9)
    foreign = [made("db"), made("cache", **{labels.INSPECTION: "rootfs"}), made(names.INSPECTION_PREFIX + "theirs")]
    for container_id in foreign:
        engine.containers[container_id].created = before
    young = made(names.inspection_name(), **{labels.INSPECTION: "rootfs"})
    engine.containers[young].created = before + 61 * 10**9

    remove_leftovers(rt)

    assert set(engine.containers) == {*foreign, young}


def archive(*, content: bytes = b"data", kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("passwd")
        entry.size, entry.type = len(content), kind
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def header(kind: bytes, *, size: int) -> bytes:
    entry = tarfile.TarInfo("passwd")
    entry.size, entry.type = size, kind
    return entry.tobuf(tarfile.GNU_FORMAT) + bytes(512 if kind == tarfile.GNUTYPE_LONGNAME else 0)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda: b"",
        lambda: b"no archive at all" * 100,
        lambda: archive()[:512],
        lambda: archive(content=b"longer than announced"),
        lambda: archive(content=b"1"),
        lambda: archive(content=b"", kind=tarfile.FIFOTYPE),
        lambda: bytes(1024),
        lambda: header(tarfile.XHDTYPE, size=12) + b"12 size=-99\n",
        lambda: header(tarfile.GNUTYPE_SPARSE, size=4),
    ],
    ids=[
        "empty",
        "no archive",
        "cut off",
        "longer",
        "shorter",
        "another kind",
        "no entry",
        "negative",
        "sparse",
    ],
)
def test_archive_with_other_content_is_refused(damaged: Callable[[], bytes]) -> None:
    with pytest.raises(ShimError, match="etc/passwd: Docker's archive"):
        file_from_tar([damaged()], size=4, what="/etc/passwd")


def test_endless_archive_is_refused() -> None:
    pieces = itertools.repeat(bytes(1 << 16), 100)

    with pytest.raises(ShimError, match="Docker sends more than the 4 bytes it announced"):
        file_from_tar(pieces, size=4, what="/etc/passwd")
    assert len(list(pieces)) > 90


def test_an_archive_of_nested_headers_is_refused() -> None:
    """Each header announces another, which tarfile reads within the first."""
    nested = header(tarfile.GNUTYPE_LONGNAME, size=1) * 4000

    with pytest.raises(ShimError, match="etc/passwd: Docker's archive cannot be read"):
        file_from_tar([nested], size=4 << 20, what="/etc/passwd")
