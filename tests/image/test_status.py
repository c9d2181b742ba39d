"""ImageStatus: an image, or an empty answer."""

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument, NotFound, Unavailable
from shim.domain.ids import ImageId
from shim.engine.answers import ImageSettings
from shim.image.list import list_images
from shim.image.pull import pull_image
from shim.image.status import image_status
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.waits import wait_until


def status(rt: Runtime, name: str, *, verbose: bool = False) -> pb.ImageStatusResponse:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=verbose)


def test_status_equals_the_list_entry(rt: Runtime) -> None:
    for image in list_images(rt, filter=pb.ImageFilter()):
        for name in (image.id, image.id.removeprefix("sha256:"), *image.repo_tags, *image.repo_digests):
            assert status(rt, name).image == image
    assert status(rt, "busybox") == status(rt, BUSYBOX)


def test_new_image_is_found(rt: Runtime, engine: FakeEngine) -> None:
    image_id = engine.add_image("local/app:1")
    assert status(rt, "local/app:1").image.id == image_id


@pytest.mark.parametrize("name", ["missing/image", "ab" * 32, "r.example/a@sha256:" + "ab" * 32])
@pytest.mark.parametrize("verbose", [False, True])
def test_unknown_image_gives_an_empty_answer(rt: Runtime, name: str, *, verbose: bool) -> None:
    assert status(rt, name, verbose=verbose) == pb.ImageStatusResponse()


def test_malformed_name_is_refused(rt: Runtime) -> None:
    with pytest.raises(InvalidArgument, match="capitals"):
        status(rt, "BusyBox")


def test_no_docker_call_unless_verbose(rt: Runtime, engine: FakeEngine) -> None:
    image = status(rt, BUSYBOX).image
    engine.calls.clear()
    for name in (image.id, image.id.removeprefix("sha256:"), *image.repo_tags, *image.repo_digests):
        assert status(rt, name).info == {}
    assert engine.calls == []


def test_unknown_image_costs_a_single_inspect(rt: Runtime, engine: FakeEngine) -> None:
    engine.calls.clear()
    status(rt, "missing/image")
    assert engine.calls == [("inspect_image", "missing/image")]


def test_tag_that_has_moved_is_found_before_the_change_is_inspected(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = engine.add_image("r.example/app:1")
    wait_until(lambda: status(rt, "r.example/app:1").image.id == first)
    monkeypatch.setattr("shim.view.refresh.BURST_SECONDS", 3600.0)
    second = engine.add_image("r.example/app:1", ImageSettings(user="www"))
    wait_until(rt.view.images.has_unseen_events)

    assert status(rt, "r.example/app:1").image.id == second
    assert status(rt, first).image.id == first


@pytest.mark.parametrize("by", ["id", "digest"])
def test_removed_image_is_missing_before_its_event_is_handled(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    image_id = engine.publish_image("r.example/app:1")
    pull_image(rt, image=pb.ImageSpec(image="r.example/app:1"), auth=None)
    name = image_id if by == "id" else engine.images[-1].digests[0]
    wait_until(lambda: status(rt, name).image.id == image_id)
    monkeypatch.setattr("shim.view.refresh.BURST_SECONDS", 3600.0)
    engine.remove_image("r.example/app:1")
    wait_until(lambda: rt.view.images.has_unseen_events(ImageId(image_id)))  # the pull has an event, too

    assert not status(rt, name).HasField("image")


def test_listed_image_is_inspected_for_its_user(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.view.refresh.INSPECTED_AT_START", 0)
    engine.disconnect()
    wait_until(lambda: rt.view.stats().outage)
    image_id = engine.add_image("r.example/app:1", ImageSettings(user="www"))
    engine.reconnect()
    wait_until(lambda: not rt.view.stats().outage)
    (listed,) = list_images(rt, filter=pb.ImageFilter(image=pb.ImageSpec(image=image_id)))
    assert listed.username == ""
    engine.calls.clear()
    assert [status(rt, image_id).image.username for _ in range(2)] == ["www"] * 2
    assert engine.calls_of("inspect_image") == [image_id]


def test_unknown_image_is_unavailable_without_docker(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("inspect_image", Unavailable("inspect image: docker cannot be reached"))
    with pytest.raises(Unavailable):
        status(rt, "missing/image")


def test_verbose_status_has_the_image_configuration(rt: Runtime, engine: FakeEngine) -> None:
    settings = ImageSettings(
        user="www",
        labels={"a": "b"},
        entrypoint=["/x"],
        cmd=["-c"],
        stop_signal="SIGINT",
        env=["A=b"],
        exposed_ports={"80/tcp": {}},
        volumes={"/data": {}},
        working_dir="/srv",
    )
    image_id = engine.add_image("r.example/app:1", settings)
    rt.view.images.refresh()
    info = msgspec.json.decode(status(rt, "r.example/app:1", verbose=True).info["info"])
    assert info["id"] == image_id
    assert info["imageSpec"]["config"] == {
        "User": "www",
        "Labels": {"a": "b"},
        "Entrypoint": ["/x"],
        "Cmd": ["-c"],
        "StopSignal": "SIGINT",
        "Env": ["A=b"],
        "ExposedPorts": {"80/tcp": {}},
        "Volumes": {"/data": {}},
        "WorkingDir": "/srv",
    }


def test_image_removed_meanwhile_gives_an_empty_answer(rt: Runtime, engine: FakeEngine) -> None:
    status(rt, BUSYBOX)
    engine.fail_next("inspect_image", NotFound("inspect image: no such image"))
    assert status(rt, BUSYBOX, verbose=True) == pb.ImageStatusResponse()
