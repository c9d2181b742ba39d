"""An image has the same identity in every answer."""

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.list import list_containers
from shim.container.status import container_status
from shim.domain.ids import ImageId
from shim.image.identity import image_from_record, image_ref_of
from shim.image.list import list_images
from shim.image.pull import pull_image
from shim.runtime import Runtime
from shim.view.records import ImageRecord
from tests.fakes.engine import FakeEngine
from tests.pods import container_config, ready_pod, running

ID = ImageId("sha256:" + "ab" * 32)


def record(*, user: str = "", size: int = 10, digests: tuple[str, ...] = ()) -> ImageRecord:
    return ImageRecord(id=ID, repo_tags=("r.example/a:1",), repo_digests=digests, size=size, user=user)


@pytest.mark.parametrize(
    ("user", "uid", "username"),
    [
        ("", None, ""),
        ("0", 0, ""),
        ("1002", 1002, ""),
        ("1003:users", 1003, ""),
        ("www-data", None, "www-data"),
        ("www-data:100", None, "www-data"),
        ("-5", None, "-5"),
        ("²", None, "²"),
        (str(2**63), None, str(2**63)),
    ],
)
def test_user_is_split_into_uid_and_name(user: str, uid: int | None, username: str) -> None:
    image = image_from_record(record(user=user), pinned=False)
    assert image.username == username
    assert (image.uid.value if image.HasField("uid") else None) == uid


@pytest.mark.parametrize(("size", "reported"), [(10, 10), (0, 1)])
def test_size_is_never_zero(size: int, reported: int) -> None:
    assert image_from_record(record(size=size), pinned=False).size == reported


def test_image_ref_is_the_first_digest_or_the_id() -> None:
    assert image_ref_of(record(digests=("r.example/a@sha256:1", "r.example/b@sha256:1"))) == "r.example/a@sha256:1"
    assert image_ref_of(record()) == ID


def test_an_image_has_the_same_id_in_every_answer(rt: Runtime, engine: FakeEngine) -> None:
    engine.publish_image("r.example/app:1")
    pulled = pull_image(rt, image=pb.ImageSpec(image="r.example/app:1"), auth=None)
    sandbox = ready_pod(rt)
    container = running(rt, sandbox, image=pulled)
    (listed,) = list_containers(rt, filter=pb.ContainerFilter(id=container))
    reported = container_status(rt, container_id=container, verbose=False).status
    (image,) = list_images(rt, filter=pb.ImageFilter(image=container_config(image=pulled).image))
    assert {pulled, image.id, listed.image_id, reported.image_id} == {pulled}
    assert (
        reported.image_ref
        == (image_ref_of(found) if (found := rt.view.images.find(pulled)) else "")
        == image.repo_digests[0]
    )
