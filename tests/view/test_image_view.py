"""The view's images are never older than a finished list or inspect."""

import threading
import time

from shim.domain.ids import ImageId
from shim.view.node_view import NodeView
from tests.fakes.engine import FakeEngine
from tests.view.late import LateEngine


def test_images_are_listed_and_found(engine: LateEngine, view: NodeView) -> None:
    image_id = engine.add_image("busybox")
    assert view.images.all() == ()
    view.images.refresh()
    (found,) = view.images.all()
    assert view.images.find("docker.io/library/busybox:latest") is view.images.find(image_id) is found
    assert view.images.find("registry.example/app") is None


def test_a_late_image_list_does_not_replace_a_newer_list(engine: LateEngine, view: NodeView) -> None:
    engine.add_image("busybox")

    def another_image() -> None:
        engine.add_image("registry.example/app")
        view.images.refresh()

    engine.meanwhile.append(another_image)
    view.images.refresh()
    assert len(view.images.all()) == 2


def test_an_image_is_inspected_alone(engine: FakeEngine, view: NodeView) -> None:
    image_id = engine.add_image("docker.io/library/busybox:latest")
    engine.calls.clear()
    record = view.images.refresh_one("docker.io/library/busybox:latest")
    assert record is not None
    assert record == view.images.find("busybox")
    assert record.id == image_id
    assert view.images.refresh_one("docker.io/library/nothing:latest") is None
    assert {method for method, _ in engine.calls} == {"inspect_image"}


def test_an_image_is_confirmed_only_under_its_name(engine: FakeEngine, view: NodeView) -> None:
    busybox, other = ImageId(engine.add_image("busybox")), ImageId(engine.add_image("other"))
    view.images.refresh()
    record = view.images.confirm("docker.io/library/busybox:latest", busybox, since=time.monotonic_ns())
    assert record == view.images.find("busybox")
    assert view.images.confirm("docker.io/library/busybox:latest", other, since=time.monotonic_ns()) is None
    assert view.images.confirm("docker.io/library/nothing:latest", busybox, since=time.monotonic_ns()) is None


def test_a_slow_list_is_published_despite_confirmed_images(engine: LateEngine, view: NodeView) -> None:
    busybox = ImageId(engine.add_image("busybox"))
    view.images.refresh()
    engine.add_image("registry.example/app")

    def confirmed() -> None:
        engine.meanwhile.append(confirmed)  # also during the next list
        assert view.images.confirm("busybox", busybox, since=time.monotonic_ns()) is not None
        assert view.images.refresh_one(engine.add_image("registry.example/late")) is not None

    confirmed()
    engine.calls.clear()
    view.images.refresh()
    assert [method for method, _ in engine.calls].count("list_images") == 1
    for name in ("busybox", "registry.example/app", "registry.example/late"):
        assert view.images.find(name) is not None


def test_a_confirmation_after_the_request_of_a_list_wins_over_the_list(engine: LateEngine, view: NodeView) -> None:
    first, second = ImageId(engine.add_image("busybox")), ImageId(engine.add_image("second"))
    view.images.refresh()
    mine, other = (image for image in engine.images if image.id in {first, second})

    def moved() -> None:
        other.tags, mine.tags = other.tags + mine.tags, []
        assert view.images.refresh_one("busybox") is not None
        assert view.images.confirm("busybox", second, since=time.monotonic_ns()) is not None

    engine.meanwhile.append(moved)
    view.images.refresh()
    found = view.images.find("busybox")
    assert found is not None
    assert found.id == second


def test_a_list_that_begins_supersedes_the_inspect_of_an_image(engine: LateEngine, view: NodeView) -> None:
    """The list may have been requested because the image is gone."""
    reference = "docker.io/library/busybox:latest"
    engine.add_image(reference)
    listing = threading.Thread(target=view.images.refresh)
    with engine.held("list_images", "") as gate:

        def removed() -> None:
            engine.remove_image(reference)
            listing.start()
            gate.wait_entered()

        engine.after_image.append(removed)
        assert view.images.refresh_one(reference) is None
    listing.join()
    assert view.images.all() == ()


def test_a_list_answers_for_the_events_before_it(engine: LateEngine) -> None:
    view = NodeView(engine)
    view.complete_sync(view.begin_sync())
    image_id = engine.add_image("busybox")
    before = time.time_ns()
    view.images.note_event(image_id, before)
    during: list[int] = []
    engine.meanwhile.append(lambda: during.append(time.time_ns()))
    view.images.refresh()
    assert view.images.asked_after(image_id, before)
    assert not view.images.has_unseen_events()
    assert not view.images.asked_after(image_id, during[0])
