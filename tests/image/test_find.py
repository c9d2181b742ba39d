"""If images cannot be listed, only calls that need the list fail."""

from collections.abc import Callable, Iterator

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.status import container_status
from shim.domain.errors import InvalidArgument, NotFound, ShimError, Unavailable
from shim.engine.answers import EngineInfo
from shim.image.find import find_image
from shim.image.fs_info import image_fs_info
from shim.image.list import list_images
from shim.image.pull import pull_image
from shim.image.remove import remove_image
from shim.image.status import image_status
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running
from tests.waits import wait_until

SICK = ShimError("list images: layer does not exist (status 500)")


@pytest.fixture(autouse=True, params=["from the start", "since the last list"])
def _sick(rt: Runtime, engine: FakeEngine, request: pytest.FixtureRequest) -> Iterator[None]:
    """Return an Engine that cannot list images: either from the start, or after a first list."""
    rt.view.images.all()
    engine.fail_next("list_images", *[SICK] * 10_000)
    if request.param == "from the start":
        engine.disconnect()
        wait_until(lambda: rt.view.stats().outage)
        engine.reconnect()
        wait_until(lambda: not rt.view.stats().outage)
        wait_until(lambda: "layer does not exist" in rt.view.stats().images_outage)
    yield
    engine._failures.clear()


def spec(name: str) -> pb.ImageSpec:
    return pb.ImageSpec(image=name)


def test_pods_and_containers_still_run(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    container = running(rt, pod)
    status = container_status(rt, container_id=container, verbose=False).status
    assert status.state == pb.CONTAINER_RUNNING
    assert status.image_id in {image.id for image in engine.images}
    assert status.image.image == BUSYBOX
    with pytest.raises(NotFound, match="is not on this node"):
        created(rt, pod, "other", image="missing/image")


def test_new_image_is_found_alone(rt: Runtime, engine: FakeEngine) -> None:
    image_id = engine.add_image("local/app:1")
    found = image_status(rt, image=spec("local/app:1"), verbose=False).image
    assert (found.id, found.pinned) == (image_id, False)
    assert image_status(rt, image=spec("missing/image"), verbose=True) == pb.ImageStatusResponse()
    with pytest.raises(InvalidArgument, match="capitals"):
        image_status(rt, image=spec("BusyBox"), verbose=False)


def test_the_pause_image_stays_pinned(rt: Runtime) -> None:
    assert image_status(rt, image=spec(rt.config.pod_infra_container_image), verbose=False).image.pinned


@pytest.mark.parametrize("by", [lambda image: BUSYBOX, lambda image: image.id], ids=["name", "id"])
def test_an_image_can_be_removed(rt: Runtime, engine: FakeEngine, by: Callable[[pb.Image], str]) -> None:
    image = image_status(rt, image=spec(BUSYBOX), verbose=False).image
    remove_image(rt, image=spec(by(image)))
    assert image.id not in {it.id for it in engine.images}
    assert rt.view.images.last_known(BUSYBOX) is None
    remove_image(rt, image=spec(by(image)))


@pytest.mark.parametrize("status", [None, [["driver-type", "io.containerd.snapshotter.v1"]]], ids=["graph", "store"])
def test_an_image_can_be_pulled(rt: Runtime, engine: FakeEngine, status: list[list[str]] | None) -> None:
    engine.engine_info = EngineInfo(server_version="28.5.2", docker_root_dir="/var/lib/docker", driver_status=status)
    image_id = engine.publish_image("registry.example/app:1")
    for _ in range(2):
        assert pull_image(rt, image=spec("registry.example/app:1"), auth=None) == image_id
    assert find_image(rt, "registry.example/app:1") is not None


def test_unavailable_docker_is_not_queried_again(rt: Runtime, engine: FakeEngine) -> None:
    engine.disconnect()
    wait_until(lambda: rt.view.stats().outage)
    engine.calls.clear()
    with pytest.raises(Unavailable):
        find_image(rt, BUSYBOX)
    assert engine.calls_of("inspect_image") == []


def test_calls_that_need_all_images_report_the_reason(rt: Runtime, request: pytest.FixtureRequest) -> None:
    if "since" in request.node.name:
        assert len(list_images(rt, filter=pb.ImageFilter())) == 2  # as they were known
        return
    for question in (
        lambda: list_images(rt, filter=pb.ImageFilter()),
        lambda: list_images(rt, filter=pb.ImageFilter(image=spec(BUSYBOX))),
        lambda: image_fs_info(rt),
    ):
        with pytest.raises(Unavailable, match=r"images are not known.*layer does not exist"):
            question()
