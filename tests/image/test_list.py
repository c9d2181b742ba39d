"""ListImages: the images of the node, with the names that the kubelet uses."""

from dataclasses import replace

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.config.model import Config
from shim.engine.answers import ImageSettings
from shim.image.list import list_images
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine

PAUSE = Config().pod_infra_container_image


def listed(rt: Runtime, name: str = "") -> list[pb.Image]:
    return list_images(rt, filter=pb.ImageFilter(image=pb.ImageSpec(image=name)))


def add(rt: Runtime, engine: FakeEngine, reference: str, user: str = "") -> str:
    image_id = engine.add_image(reference, ImageSettings(user=user))
    rt.view.images.lookup(image_id)
    return image_id


def test_all_images_in_a_stable_order(rt: Runtime, engine: FakeEngine) -> None:
    for number in range(5):
        add(rt, engine, f"r.example/app{number}:1")
    images = listed(rt)
    assert len(images) == 7
    assert [image.id for image in images] == sorted(image.id for image in images)
    assert listed(rt) == images


def test_listed_images_have_all_fields(rt: Runtime, engine: FakeEngine) -> None:
    image_id = add(rt, engine, "team/app:1", user="1003:users")
    (image,) = listed(rt, image_id)
    assert list(image.repo_tags) == ["docker.io/team/app:1"]
    assert [digest.partition("@")[0] for digest in image.repo_digests] == ["docker.io/team/app"]
    assert (image.id, image.size, image.uid.value) == (image_id, 1000, 1003)


@pytest.mark.parametrize(
    "spelling", ["busybox", "busybox:latest", "docker.io/library/busybox", BUSYBOX, "id", "digest"]
)
def test_filter_selects_an_image(rt: Runtime, spelling: str) -> None:
    everything = listed(rt)
    (busybox,) = [image for image in everything if BUSYBOX in image.repo_tags]
    name = {"id": busybox.id, "digest": busybox.repo_digests[0]}.get(spelling, spelling)
    assert listed(rt, name) == [busybox]


@pytest.mark.parametrize("name", ["busybox:other", "box", "r.example/busybox", "ff" * 32])
def test_filter_without_a_match_gives_an_empty_list(rt: Runtime, name: str) -> None:
    assert listed(rt, name) == []


@pytest.mark.parametrize("form", ["tag", "digest", "tag and digest", "id"])
def test_the_pause_image_is_pinned(rt: Runtime, form: str) -> None:
    (pause,) = listed(rt, PAUSE)
    digest = pause.repo_digests[0]
    setting = {
        "tag": PAUSE,
        "digest": digest,
        "tag and digest": f"{PAUSE}@{digest.partition('@')[2]}",
        "id": pause.id,
    }[form]
    pinned_by(rt, setting, expected={pause.id})


@pytest.mark.parametrize("setting", ["busybox", "docker.io/busybox", BUSYBOX])
def test_pause_image_is_pinned_by_any_spelling(rt: Runtime, setting: str) -> None:
    (busybox,) = listed(rt, BUSYBOX)
    pinned_by(rt, setting, expected={busybox.id})


def test_nothing_is_pinned_before_the_pause_image_is_here(rt: Runtime) -> None:
    pinned_by(rt, "r.example/other-pause:1", expected=set())


def pinned_by(rt: Runtime, setting: str, *, expected: set[str]) -> None:
    changed = msgspec.structs.replace(rt.config, pod_infra_container_image=setting)
    object.__setattr__(rt, "config", changed)
    assert {image.id for image in listed(rt) if image.pinned} == expected


@pytest.mark.parametrize(
    "pattern",
    [
        BUSYBOX,
        "busybox",
        "busybox:latest",
        "docker.io/library/busybox",
        "docker.io/*",
        "*/busybox:*",
        "*busybox@sha256:*",
        "nothing,busy*",
    ],
)
def test_matching_images_are_pinned(rt: Runtime, pattern: str) -> None:
    config = msgspec.structs.replace(rt.config, pinned_images=tuple(pattern.split(",")))
    pinned = [image.pinned for image in list_images(replace(rt, config=config), filter=pb.ImageFilter())]
    assert pinned == [True, True]


@pytest.mark.parametrize("pattern", ["box", "busybox:1", "r.example/*", "docker.io", "busyb?x", "docker-io/*"])
def test_other_images_are_not_pinned(rt: Runtime, pattern: str) -> None:
    config = msgspec.structs.replace(rt.config, pinned_images=(pattern,))
    (image,) = list_images(replace(rt, config=config), filter=pb.ImageFilter(image=pb.ImageSpec(image=BUSYBOX)))
    assert not image.pinned
