"""RemoveImage keeps images that a container needs, with all their names."""

import io
from collections.abc import Iterator

import pytest

from integration.image.conftest import Publish
from integration.node.engine import Engine
from integration.node.images import image_id as image_id_of
from integration.node.images import load_many
from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.image.list import list_images
from shim.image.pull import pull_image
from shim.image.remove import remove_image
from shim.runtime import Runtime

NAMES = {
    "tag": [],
    "two tags": ["{repository}:2"],
    "two repositories": ["elsewhere.example/used:1"],
}


def remove(rt: Runtime, name: str) -> None:
    remove_image(rt, image=pb.ImageSpec(image=name))


def names_in_docker(engine: Engine, image_id: str) -> set[str]:
    return set(engine.api.inspect_image(image_id)["RepoTags"])  # type: ignore[no-untyped-call]  # absent from types-docker


def made(engine: Engine, state: str, image: str) -> str:
    """Make a container of a user in a state."""
    command = ["sleep", "60" if state != "exited" else "0"]
    container = engine.api.create_container(image, command=command, network_disabled=True)["Id"]
    if state != "created":
        engine.api.start(container)
    if state == "exited":
        engine.api.wait(container)
    return str(container)


@pytest.fixture
def used(rt: Runtime, engine: Engine, publish: Publish) -> Iterator[str]:
    """Provide the name of a pulled image, which has a digest."""
    reference = publish("in-use:1", programs=True)
    pull_image(rt, image=pb.ImageSpec(image=reference), auth=None)
    yield reference
    for image in engine.api.images(filters={"label": "of=the-test"}):
        engine.api.remove_image(image["Id"], force=True)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("state", ["created", "running", "exited"])
def test_an_image_that_a_container_of_a_user_needs_keeps_all_its_names(
    rt: Runtime, engine: Engine, used: str, state: str, names: str
) -> None:
    image_id = str(image_id_of(engine.api, used))
    for name in NAMES[names]:
        repository, _, tag = name.format(repository=used.rpartition(":")[0]).rpartition(":")
        engine.api.tag(image_id, repository, tag)
    before = names_in_docker(engine, image_id)
    container = made(engine, state, used)
    record = rt.view.images.lookup(image_id)
    assert record is not None
    for name in (image_id, used, *record.repo_digests):
        with pytest.raises(FailedPrecondition, match=rf"in use by {state} container \S+ \({container[:12]}\)"):
            remove(rt, name)
    assert names_in_docker(engine, image_id) == before
    engine.api.remove_container(container, force=True)
    remove(rt, used)
    assert image_id not in {image["Id"] for image in engine.api.images()}
    assert rt.view.images.find(image_id) is None


def test_an_image_without_a_name_is_removed_by_its_id(rt: Runtime, engine: Engine) -> None:
    dockerfile = b"FROM scratch\nLABEL nameless=1\nENV A=B\n"
    *_, last = engine.api.build(fileobj=io.BytesIO(dockerfile), rm=True, decode=True)
    (image,) = engine.api.images(filters={"label": "nameless=1", "dangling": True})
    rt.view.images.refresh()
    assert image["Id"] in {each.id for each in list_images(rt, filter=pb.ImageFilter())}, last
    remove(rt, image["Id"])
    assert image["Id"] not in {each["Id"] for each in engine.api.images()}


def test_a_list_agrees_with_inspects_of_all_images(rt: Runtime, engine: Engine, publish: Publish) -> None:
    """Sizes, names, digests and parents agree with both image stores."""
    by_digest = publish("listed-by-digest:1")
    pull_image(rt, image=pb.ImageSpec(image=by_digest), auth=None)
    record = rt.view.images.lookup(by_digest)
    assert record is not None
    engine.api.tag(record.id, "local/second-name", "1")
    engine.api.tag(record.id, "local/second-name", "2")
    rt.view.images.refresh()
    listed = {image.id: image for image in rt.view.images.all()}
    inspected = {image_id: rt.view.images.refresh_one(image_id) for image_id in listed}
    assert listed == {**listed, record.id: inspected[record.id]}
    for image_id, image in inspected.items():
        assert image is not None
        theirs = listed[image_id]
        assert (theirs.names, theirs.size, theirs.parent) == (image.names, image.size, image.parent)
    remove(rt, record.id)


def test_removals_of_many_images_do_not_list_the_images(rt: Runtime, engine: Engine, images_count: int) -> None:
    names = [f"many/image{number}:1" for number in range(images_count)]
    load_many(engine.api, names)
    rt.view.images.refresh()
    before = len(rt.view.images.all())
    for name in names[:20]:
        remove(rt, name)
    assert len(rt.view.images.all()) == before - 20
    assert len(engine.api.images()) == before - 20
    for name in names[20:]:
        engine.api.remove_image(name)


@pytest.fixture
def images_count(request: pytest.FixtureRequest) -> int:
    """Provide the number of images from `--images`."""
    return int(request.config.getoption("--images"))
