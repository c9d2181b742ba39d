"""RemoveImage: all names of an image, or none of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from shim.image.remove import remove_image
from shim.image.status import image_status
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running

HAS_CHILDREN = FailedPrecondition("conflict: unable to delete (cannot be forced) - image has dependent child images")


def remove(rt: Runtime, name: str) -> None:
    remove_image(rt, image=pb.ImageSpec(image=name))


def present(rt: Runtime, name: str) -> bool:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=False).HasField("image")


def image_id(rt: Runtime, name: str = BUSYBOX) -> str:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=False).image.id


@pytest.mark.parametrize("by", ["id", "digits", "tag", "familiar", "digest", "tag and digest"])
def test_takes_all_names(rt: Runtime, engine: FakeEngine, by: str) -> None:
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
def test_what_is_not_here(rt: Runtime, name: str) -> None:
    remove(rt, name)
    remove(rt, name)


def test_twice(rt: Runtime) -> None:
    found = image_id(rt)
    remove(rt, found)
    remove(rt, found)


def test_a_bad_name(rt: Runtime) -> None:
    with pytest.raises(InvalidArgument, match="malformed"):
        remove(rt, "a//b")


def test_an_image_docker_got_a_moment_ago(rt: Runtime, engine: FakeEngine) -> None:
    with engine.held("list_images"):  # the watcher's refresh
        engine.add_image("r.example/new:1")
        assert rt.view.images.find("r.example/new:1") is None
    remove(rt, "r.example/new:1")
    assert "r.example/new:1" not in {tag for image in engine.images for tag in image.tags}


def test_a_name_that_has_gone_to_another_image_a_moment_ago(rt: Runtime, engine: FakeEngine) -> None:
    before = image_id(rt)
    engine.add_image("r.example/new:1")
    rt.view.images.refresh()
    old, new = engine.images[-2:]
    old.tags, new.tags = ["r.example/precious:1"], [*new.tags, *old.tags]  # the view has not heard of it
    remove(rt, BUSYBOX)
    assert present(rt, "r.example/precious:1")
    assert image_id(rt, "r.example/precious:1") == before
    assert new not in engine.images


def test_an_id_is_not_looked_up(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    engine.calls.clear()
    remove(rt, found)
    methods = [method for method, _ in engine.calls]
    assert methods[0] == "remove_image"


def test_five_at_once(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)

    def remove_and_check(name: str) -> bool:
        remove(rt, name)
        return present(rt, found)

    with engine.held("remove_image") as gate, ThreadPoolExecutor(5) as pool:
        removals = [pool.submit(remove_and_check, name) for name in (found, BUSYBOX, "busybox", found, BUSYBOX)]
        gate.wait_entered()
        engine.release(gate)
        assert [removal.result(10) for removal in removals] == [False] * 5
    assert engine.calls_of("remove_image") == [found]


def test_removed_by_others_meanwhile(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("remove_image", NotFound("no such image"))
    remove(rt, BUSYBOX)


@pytest.mark.parametrize("start", [True, False], ids=["running", "created"])
def test_in_use_is_refused_with_the_user_named(rt: Runtime, engine: FakeEngine, *, start: bool) -> None:
    sandbox = ready_pod(rt)
    container = running(rt, sandbox, "app") if start else created(rt, sandbox, "app")
    with pytest.raises(FailedPrecondition, match=rf"in use by container app \({container[:12]}\)"):
        remove(rt, BUSYBOX)
    assert present(rt, BUSYBOX)
    assert "remove_image" not in {call for call, _ in engine.calls}


@pytest.mark.parametrize("start", [True, False], ids=["running", "created"])
def test_a_mounted_image_is_in_use(rt: Runtime, engine: FakeEngine, *, start: bool) -> None:
    engine.add_image("model:1")
    rt.view.images.refresh()
    mount = pb.Mount(container_path="/model", image=pb.ImageSpec(image="model:1"), readonly=True)
    container = (running if start else created)(rt, ready_pod(rt), "app", mounts=[mount])
    with pytest.raises(FailedPrecondition, match=rf"in use by container app \({container[:12]}\)"):
        remove(rt, "model:1")
    assert present(rt, "model:1")
    assert "remove_image" not in {call for call, _ in engine.calls}


def test_an_ended_container_does_not_hold_its_image(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.exit_container(container)
    rt.view.refresh_container(container)
    remove(rt, BUSYBOX)
    assert not present(rt, BUSYBOX)


def test_in_use_by_a_container_of_docker_alone(rt: Runtime, engine: FakeEngine) -> None:
    container = engine.create_container(name="not-of-a-pod", body={"Image": BUSYBOX})
    engine.start_container(container)
    with pytest.raises(FailedPrecondition, match=container):
        remove(rt, BUSYBOX)
    assert present(rt, BUSYBOX)


def test_an_image_others_were_built_from_loses_its_names(rt: Runtime, engine: FakeEngine) -> None:
    found = image_id(rt)
    engine.fail_next("remove_image", HAS_CHILDREN)
    remove(rt, BUSYBOX)
    assert not present(rt, BUSYBOX)
    assert found not in {image.id for image in engine.images}


@pytest.mark.parametrize("start", [True, False], ids=["running", "created"])
def test_an_image_others_were_built_from_keeps_its_names_while_a_container_uses_it(
    rt: Runtime, engine: FakeEngine, *, start: bool
) -> None:
    container = engine.create_container(name="not-of-a-pod", body={"Image": BUSYBOX})
    if start:
        engine.start_container(container)
    engine.fail_next("remove_image", HAS_CHILDREN)
    with pytest.raises(FailedPrecondition, match=rf"in use by container not-of-a-pod \({container[:12]}\)"):
        remove(rt, BUSYBOX)
    assert present(rt, BUSYBOX)
    assert [subject for method, subject in engine.calls if method == "remove_image"] == [image_id(rt)]


def test_an_image_others_were_built_from_keeps_its_names_while_a_sandbox_uses_it(
    rt: Runtime, engine: FakeEngine
) -> None:
    pause = ready_pod(rt)
    engine.fail_next("remove_image", HAS_CHILDREN)
    with pytest.raises(FailedPrecondition, match=rf"in use by container k8s_POD_\S+ \({pause[:12]}\)"):
        remove(rt, rt.config.pod_infra_container_image)
    assert present(rt, rt.config.pod_infra_container_image)


def test_an_image_others_were_built_from_is_not_held_by_an_ended_container(rt: Runtime, engine: FakeEngine) -> None:
    container = engine.create_container(name="not-of-a-pod", body={"Image": BUSYBOX})
    engine.start_container(container)
    engine.exit_container(container)
    engine.fail_next("remove_image", HAS_CHILDREN)
    remove(rt, BUSYBOX)
    assert not present(rt, BUSYBOX)


def test_docker_out_of_reach(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("remove_image", Unavailable("docker cannot be reached"))
    with pytest.raises(Unavailable):
        remove(rt, BUSYBOX)
    assert present(rt, BUSYBOX)
