"""An image's users are read once, for the first caller, and forgotten with the image."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, FailedPrecondition, NotFound, ShimError
from shim.domain.ids import ImageId
from shim.domain.passwd import MAX_LINES, Accounts, User
from shim.engine.answers import ImageSettings, PathKind
from shim.image.accounts import FILE_LIMIT, accounts_of
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_files import FakeFile

FILES: dict[str, FakeFile | bytes] = {
    "/etc/passwd": b"www:x:1000:1000::/:\n",
    "/etc/group": b"video:x:44:www\n",
}


@pytest.fixture
def image(rt: Runtime, engine: FakeEngine) -> ImageId:
    made = ImageId(engine.add_image("users:1", ImageSettings(user="www:video"), files=FILES))
    rt.view.images.refresh()
    return made


def inspections(engine: FakeEngine) -> int:
    return len(engine.calls_of("create_container"))


def test_users_groups_and_the_default_user_are_read(rt: Runtime, image: ImageId) -> None:
    found = accounts_of(rt, image_id=image)

    assert found.default_user == "www:video"
    assert found.accounts.users == (User("www", 1000, 1000),)
    assert [group.name for group in found.accounts.groups] == ["video"]


def test_image_without_passwd_and_group_has_no_users(rt: Runtime, engine: FakeEngine) -> None:
    empty = ImageId(engine.add_image("empty:1"))
    found = accounts_of(rt, image_id=empty)

    assert found.default_user == ""
    assert found.accounts == Accounts()


def test_second_call_does_not_query_docker(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    first = accounts_of(rt, image_id=image)
    engine.calls.clear()

    assert accounts_of(rt, image_id=image) is first
    assert engine.calls == []


def test_concurrent_callers_share_one_inspection(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    with ThreadPoolExecutor(8) as pool, engine.held("archive") as gate:
        asking = [pool.submit(accounts_of, rt, image_id=image) for _ in range(8)]
        gate.wait_entered()
        engine.release(gate)
        found = {id(each.result(10)) for each in asking}

    assert len(found) == 1
    assert inspections(engine) == 1


def test_a_caller_that_leaves_does_not_end_the_inspection_for_others(
    rt: Runtime, engine: FakeEngine, image: ImageId
) -> None:
    scope = deadline.Scope(seconds=60)

    def leaving() -> object:
        with deadline.entered(scope):
            return accounts_of(rt, image_id=image)

    with ThreadPoolExecutor(2) as pool, engine.held("archive") as gate:
        first = pool.submit(leaving)
        gate.wait_entered()
        second = pool.submit(accounts_of, rt, image_id=image)
        scope.cancel()
        with pytest.raises(Cancelled):
            first.result(10)
        engine.release(gate)
        assert second.result(10).default_user == "www:video"


def test_failure_is_not_cached(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    engine.fail_next("create_container", ShimError("no space left"))
    with pytest.raises(ShimError, match="no space left"):
        accounts_of(rt, image_id=image)

    assert accounts_of(rt, image_id=image).default_user == "www:video"


def test_accounts_of_a_removed_image_are_forgotten(rt: Runtime, engine: FakeEngine, image: ImageId) -> None:
    accounts_of(rt, image_id=image)
    engine.remove_image("users:1")
    rt.view.images.refresh()
    other = ImageId(engine.add_image("other:1"))
    rt.view.images.refresh()
    accounts_of(rt, image_id=other)

    with pytest.raises(NotFound):
        accounts_of(rt, image_id=image)


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/group"])
@pytest.mark.parametrize(
    ("file", "says"),
    [
        (FakeFile(kind=PathKind.OTHER), "is neither a file nor a directory"),
        (FakeFile(kind=PathKind.DIRECTORY), "is a directory"),
        (FakeFile(content=bytes(FILE_LIMIT + 1)), f"has {FILE_LIMIT + 1} bytes"),
    ],
    ids=["fifo", "directory", "too large"],
)
def test_invalid_accounts_file_is_refused(
    rt: Runtime, engine: FakeEngine, path: str, file: FakeFile, says: str
) -> None:
    image = ImageId(engine.add_image("odd:1", files={path: file}))

    with pytest.raises(FailedPrecondition, match=f"{path} of image {image} {says}"):
        accounts_of(rt, image_id=image)
    assert engine.containers == {}


@pytest.mark.parametrize("content", [b"\n" * MAX_LINES, b"a:x:1:" + b"m," * MAX_LINES], ids=["lines", "members"])
def test_file_with_too_many_names_is_refused(rt: Runtime, engine: FakeEngine, content: bytes) -> None:
    image = ImageId(engine.add_image("many:1", files={"/etc/group": content}))
    with pytest.raises(FailedPrecondition, match=f"/etc/group of image {image} has more than {MAX_LINES} lines"):
        accounts_of(rt, image_id=image)


def test_accounts_weigh_their_memory(rt: Runtime, engine: FakeEngine) -> None:
    passwd = b"".join(b"%x:x:1:1\n" % number for number in range(50_000))
    images = [ImageId(engine.add_image(f"many:{number}", files={"/etc/passwd": passwd})) for number in range(3)]
    rt.view.images.refresh()
    tracemalloc.start()
    for image in images:
        accounts_of(rt, image_id=image)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 24 << 20
    assert [rt.accounts.get(image) is not None for image in images] == [False, False, True]
