"""RemoveImage: all names of an image, or none."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from shim.domain.ids import ImageId
from shim.image.remove import remove_image
from shim.image.status import image_status
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running


def remove(rt: Runtime, name: str) -> None:
    remove_image(rt, image=pb.ImageSpec(image=name))


def present(rt: Runtime, name: str) -> bool:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=False).HasField("image")


def image_id(rt: Runtime, name: str = BUSYBOX) -> str:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=False).image.id


@pytest.mark.parametrize("by", ["id", "digits", "tag", "familiar", "digest", "tag and digest"])
def test_removal_takes_all_names(rt: Runtime, engine: FakeEngine, by: str) -> None:
    image = image_status(rt, image=pb.ImageSpec(image=BUSYBOX), verbose=False).image
    engine.images[-1].tags.append("r.example/other:1")
    rt.view.images.refresh()
    name = {
        "id": image.id,
        "digits": image.id[7:],
        "tag": BUSYBOX,
        "familiar": "busybox",
        "digest": image.repo_digests[0],
        "tag and digest": f"{BUSYBOX}@{image.repo_digests[0].partition('@')[2]}",
    }[by]
    remove(rt, name)
    assert not any(present(rt, it) for it in (image.id, BUSYBOX, image.repo_digests[0], "r.example/other:1"))
    assert image.id not in {it.id for it in engine.images}


@pytest.mark.parametrize("name", ["missing/image:1", "ab" * 32, "6c7f0e0e-5e6e-4f6e-9d0e-0a4bcb5a3a2b"])
def test_unknown_image_is_fine(rt: Runtime, name: str) -> None:
    remove(rt, name)
    remove(rt, name)


def test_removal_can_be_repeated(rt: Runtime) -> None:
    found = image_id(rt)
    remove(rt, found)
    remove(rt, found)


def test_malformed_name_is_refused(rt: Runtime) -> None:
    with pytest.raises(InvalidArgument, match="malformed"):
        remove(rt, "a//b")


def test_new_image_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    engine.add_image("r.example/new:1")
    remove(rt, "r.example/new:1")
    assert "r.example/new:1" not in {tag for image in engine.images for tag in image.tags}


def test_moved_name_removes_its_new_image(rt: Runtime, engine: FakeEngine) -> None:
    before = image_id(rt)
    engine.add_image("r.example/new:1")
    rt.view.images.refresh()
    old, new = engine.images[-2:]
    old.tags, new.tags = ["r.example/precious:1"], [*new.tags, *old.tags]  # the view has not heard of it
    remove(rt, BUSYBOX)
    assert present(rt, "r.example/precious:1")
    assert image_id(rt, "r.example/precious:1") == before
    assert new not in engine.images


def test_removal_by_id_costs_a_single_call(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    engine.calls.clear()
    remove(rt, found)
    assert engine.calls == [("remove_image", found)]


def test_removal_by_name_costs_an_inspect_and_a_removal(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    engine.calls.clear()
    remove(rt, BUSYBOX)
    assert engine.calls == [("inspect_image", BUSYBOX), ("remove_image", found)]


def test_concurrent_removals_of_an_image_succeed(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)

    def remove_and_check(name: str) -> bool:
        remove(rt, name)
        return present(rt, found)

    with engine.held("remove_image") as gate, ThreadPoolExecutor(5) as pool:
        removals = [pool.submit(remove_and_check, name) for name in (found, BUSYBOX, "busybox", found, BUSYBOX)]
        gate.wait_entered()
        engine.release(gate)
        assert [removal.result(10) for removal in removals] == [False] * 5


def test_removal_waits_for_another_that_has_taken_the_name(rt: Runtime, engine: FakeEngine) -> None:
    """Docker removes the names of an image in turn, and the image last."""
    found = image_id(rt)

    def remove_by_name() -> bool:
        remove(rt, "busybox")
        return present(rt, found)

    with ThreadPoolExecutor(2) as pool, engine.held("remove_image") as gate:
        by_id = pool.submit(remove, rt, found)
        gate.wait_entered()
        engine.images[-1].tags.clear()
        by_name = pool.submit(remove_by_name)
        with pytest.raises(TimeoutError):
            by_name.result(0.2)
        engine.release(gate)
        by_id.result(10)
        assert not by_name.result(10)


def test_concurrent_removals_cost_a_call_each(rt: Runtime, engine: FakeEngine) -> None:
    ids = [engine.add_image(f"r.example/app{number}:1") for number in range(16)]
    rt.view.images.refresh()
    engine.calls.clear()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda found: remove(rt, found), ids))
    assert sorted(engine.calls_of("remove_image")) == sorted(ids)
    assert engine.calls_of("list_images") == []
    assert not {image.id for image in rt.view.images.all()} & set(ids)


def test_image_removed_externally_meanwhile_is_fine(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("remove_image", NotFound("no such image"))
    remove(rt, BUSYBOX)


def test_an_image_that_was_pulled_again_meanwhile_stays_known(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    with rt.view.images.removal(ImageId(found)):
        engine.remove_image(found)
        engine.add_image(BUSYBOX)
        assert rt.view.images.lookup(BUSYBOX) is not None
    assert rt.view.images.find(found) is not None


# --- in use -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "created", "exited"])
@pytest.mark.parametrize("tags", [[], ["r.example/other:1"]], ids=["one tag", "two tags"])
@pytest.mark.parametrize("by", ["id", "tag"])
def test_an_image_that_a_container_uses_keeps_all_its_names(
    rt: Runtime, engine: FakeEngine, state: str, tags: list[str], by: str
) -> None:
    found = image_id(rt)
    next(image for image in engine.images if image.id == found).tags.extend(tags)
    container = engine.create_container(name="of-a-user", body={"Image": BUSYBOX})
    if state != "created":
        engine.start_container(container)
    if state == "exited":
        engine.exit_container(container)
    words = rf"in use by {state} container of-a-user \({container[:12]}\); remove the container first"
    with pytest.raises(FailedPrecondition, match=words):
        remove(rt, found if by == "id" else BUSYBOX)
    assert all(present(rt, name) for name in (found, BUSYBOX, *tags))


def test_an_image_of_a_pod_is_in_use_until_its_container_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt), "app")
    engine.exit_container(container)
    rt.view.refresh_container(container)
    with pytest.raises(FailedPrecondition, match=rf"in use by exited container k8s_app_\S+ \({container[:12]}\)"):
        remove(rt, BUSYBOX)
    engine.remove_container(container)
    remove(rt, BUSYBOX)
    assert not present(rt, BUSYBOX)


def test_pause_image_is_in_use(rt: Runtime) -> None:
    pause = ready_pod(rt)
    with pytest.raises(FailedPrecondition, match=rf"in use by running container k8s_POD_\S+ \({pause[:12]}\)"):
        remove(rt, rt.config.pod_infra_container_image)


def test_error_lists_a_few_of_many_users(rt: Runtime, engine: FakeEngine) -> None:
    for number in range(7):
        engine.create_container(name=f"user{number}", body={"Image": BUSYBOX})
    with pytest.raises(FailedPrecondition, match=r"user4 \(\w+\) and 2 more; remove"):
        remove(rt, BUSYBOX)


@pytest.mark.parametrize("start", [True, False], ids=["running", "created"])
def test_a_mounted_image_is_in_use(rt: Runtime, engine: FakeEngine, *, start: bool) -> None:
    engine.add_image("model:1")
    rt.view.images.refresh()
    mount = pb.Mount(container_path="/model", image=pb.ImageSpec(image="model:1"), readonly=True)
    container = (running if start else created)(rt, ready_pod(rt), "app", mounts=[mount])
    with pytest.raises(FailedPrecondition, match=rf"mounted by container k8s_app_\S+ \({container[:12]}\)"):
        remove(rt, "model:1")
    assert present(rt, "model:1")
    assert "remove_image" not in {call for call, _ in engine.calls}


# --- the parent of another image --------------------------------------------------------------------------


def built_from(engine: FakeEngine, parent: str) -> str:
    child = engine.add_image("r.example/child:1")
    next(image for image in engine.images if image.id == child).parent = parent
    return child


def test_parent_image_loses_its_names(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    child = built_from(engine, found)
    rt.view.images.refresh()
    remove(rt, BUSYBOX)
    assert not present(rt, BUSYBOX)
    assert not present(rt, found)
    assert present(rt, child)
    assert found not in {image.id for image in rt.view.images.all()}


def test_used_parent_image_keeps_its_names(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    built_from(engine, found)
    engine.create_container(name="of-a-user", body={"Image": BUSYBOX})
    with pytest.raises(FailedPrecondition, match="in use by created container of-a-user"):
        remove(rt, found)
    assert present(rt, BUSYBOX)


def test_unreachable_docker_is_an_error(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("remove_image", Unavailable("docker cannot be reached"))
    with pytest.raises(Unavailable):
        remove(rt, BUSYBOX)
    assert present(rt, BUSYBOX)
