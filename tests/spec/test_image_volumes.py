from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.status import container_status
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound, ShimError, Unsupported
from shim.domain.ids import ContainerId, ImageId
from shim.engine.answers import PathKind
from shim.engine.errors import MountNameTooLong
from shim.runtime import Runtime
from shim.spec.image_volumes import MAX_OF_ONE_IMAGE
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_files import FakeFile
from tests.pods import created, ready_pod

FILES: dict[str, FakeFile | bytes] = {
    "/models/small/weights": b"1",
    "/link": FakeFile(kind=PathKind.LINK, link="/models/small"),
    "/out": FakeFile(kind=PathKind.LINK, link="../../models"),
    "/gone": FakeFile(kind=PathKind.LINK, link="/nowhere"),
    "/pipe": FakeFile(kind=PathKind.OTHER),
}


@pytest.fixture
def model(rt: Runtime, engine: FakeEngine) -> ImageId:
    """An image to mount, tagged model:1."""
    image = ImageId(engine.add_image("model:1", files=FILES))
    rt.view.images.refresh()
    return image


def volume(image: str = "model:1", sub_path: str = "", at: str = "/model", **fields: Any) -> pb.Mount:
    spec = pb.ImageSpec(image=image, **fields)
    return pb.Mount(container_path=at, image=spec, image_sub_path=sub_path, readonly=True)


def mounting(rt: Runtime, *mounts: pb.Mount) -> ContainerId:
    return created(rt, ready_pod(rt), mounts=mounts)


def in_docker(engine: FakeEngine, container: ContainerId) -> list[dict[str, Any]]:
    mounts = engine.containers[container].body["HostConfig"]["Mounts"]
    return [mount for mount in mounts if mount["Type"] == "image"]


def test_an_image_is_mounted_by_id_and_reported_with_it(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    asked = volume(user_specified_image="model", annotations={"a": "b"}, image_ref="whatever the client says")
    container = mounting(rt, asked)

    digits = model.removeprefix("sha256:")[:47]
    assert in_docker(engine, container) == [{"Type": "image", "Source": digits, "Target": "/model", "ReadOnly": True}]
    asked.image.image_ref = model
    assert list(container_status(rt, container_id=container, verbose=False).status.mounts) == [asked]


def test_the_status_reports_a_mounted_image_that_was_removed(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    container = mounting(rt, volume())
    engine.remove_image(model)
    rt.view.images.refresh()

    status = container_status(rt, container_id=container, verbose=False).status
    assert status.mounts[0].image.image_ref == model


@pytest.mark.parametrize(
    ("sub_path", "docker"),
    [
        ("models/small", "models/small"),
        ("./models//small/", "models/small"),
        ("link", "models/small"),
        ("out/small", "models/small"),
    ],
    ids=["plain", "cleaned", "link", "below a link"],
)
def test_a_directory_of_the_image_can_be_mounted(
    rt: Runtime, engine: FakeEngine, model: ImageId, sub_path: str, docker: str
) -> None:
    """Docker would follow links on the host, and refuse links that leave the image there."""
    container = mounting(rt, volume(sub_path=sub_path))

    assert in_docker(engine, container)[0]["ImageOptions"] == {"Subpath": docker}
    status = container_status(rt, container_id=container, verbose=False).status
    assert status.mounts[0].image_sub_path == sub_path


@pytest.mark.parametrize("sub_path", ["", ".", "./"])
def test_without_a_sub_path_the_whole_image_is_mounted(
    rt: Runtime, engine: FakeEngine, model: ImageId, sub_path: str
) -> None:
    assert "ImageOptions" not in in_docker(engine, mounting(rt, volume(sub_path=sub_path)))[0]


@pytest.mark.parametrize(
    ("sub_path", "message"),
    [
        ("models/large", "'models/large' is not in it"),
        ("gone", "'gone' is not in it"),
        ("models/small/weights", "'models/small/weights' is a regular file of it, not a directory"),
        ("pipe", "'pipe' is neither a file nor a directory of it, not a directory"),
    ],
)
def test_a_sub_path_that_is_not_a_directory_fails_at_create(
    rt: Runtime, engine: FakeEngine, model: ImageId, sub_path: str, message: str
) -> None:
    sandbox = ready_pod(rt)
    with pytest.raises(FailedPrecondition) as refusal:
        created(rt, sandbox, mounts=[volume(sub_path="models"), volume(sub_path=sub_path, at="/other")])

    assert str(refusal.value) == (
        f"ImageVolumeMountFailed: config.mounts[1].image_sub_path: image 'model:1': {message}"
    )
    assert list(engine.containers) == [sandbox]


def test_an_image_with_several_sub_paths_is_inspected_once(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox)  # the container's own image has been inspected

    engine.calls.clear()
    volumes = *(volume(sub_path="models", at=f"/{number}") for number in range(5)), volume(at="/all")
    created(rt, sandbox, "mounting", mounts=volumes)

    assert [name[:17] for name in engine.calls_of("create_container")] == [
        "pydockershim-look",
        "k8s_mounting_web_",
    ]


@pytest.mark.parametrize(
    ("image", "kind", "message"),
    [
        ("nowhere:1", NotFound, r"config\.mounts\[0\]\.image\.image: 'nowhere:1' is not on this node; pull it first"),
        ("No Reference", InvalidArgument, r"config\.mounts\[0\]\.image\.image: "),
    ],
)
def test_a_missing_image_is_refused(
    rt: Runtime, model: ImageId, image: str, kind: type[ShimError], message: str
) -> None:
    with pytest.raises(kind, match=rf"^ImageVolumeMountFailed: {message}"):
        mounting(rt, volume(image))


def test_an_old_engine_without_image_mounts_is_refused(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    engine.version = (1, 47)
    with pytest.raises(
        Unsupported,
        match=r"^ImageVolumeMountFailed: config\.mounts\[0\]\.image: needs Docker Engine 28\.0 .* speaks 1\.47$",
    ):
        mounting(rt, volume())


def test_several_mounts_of_an_image_have_different_sources(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    container = mounting(rt, *(volume(at=f"/{number}") for number in range(MAX_OF_ONE_IMAGE)))

    sources = [mount["Source"] for mount in in_docker(engine, container)]
    assert len(set(sources)) == MAX_OF_ONE_IMAGE
    assert all(model.removeprefix("sha256:").startswith(source) for source in sources)
    assert min(map(len, sources)) >= 12
    names = [f"{container},src={mount['Source']},dst={mount['Target']}" for mount in in_docker(engine, container)]
    assert max(2 * len(name) for name in names) <= 255  # hex-encoded, like in Docker 29
    status = container_status(rt, container_id=container, verbose=False).status
    assert {mount.image.image_ref for mount in status.mounts} == {model}


@pytest.mark.parametrize(("length", "digits"), [(2, 51), (20, 33), (41, 12), (42, 12), (4000, 12)])
def test_an_id_has_as_many_digits_as_fit_into_the_mounts_name(
    rt: Runtime, engine: FakeEngine, model: ImageId, length: int, digits: int
) -> None:
    container = mounting(rt, volume(at="/" + (length - 1) * "m"))
    [mount] = in_docker(engine, container)
    assert mount["Source"] == model.removeprefix("sha256:")[:digits]


def test_many_mounts_with_long_paths_have_different_sources(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    container = mounting(rt, *(volume(at=f"/{number:099}") for number in range(MAX_OF_ONE_IMAGE)))
    assert len({mount["Source"] for mount in in_docker(engine, container)}) == MAX_OF_ONE_IMAGE


def test_a_path_that_is_too_long_for_docker_fails_the_create(rt: Runtime, engine: FakeEngine, model: ImageId) -> None:
    mounting(rt, volume())  # the image has been inspected
    engine.fail_next("create_container", MountNameTooLong("create container k8s_app: the name is too long"))
    with pytest.raises(
        FailedPrecondition,
        match=r"^ImageVolumeMountFailed: config\.mounts: the container_path of an image volume may have 41 characters",
    ):
        mounting(rt, volume(at="/" + 41 * "m"))


def test_mounts_of_an_image_are_limited(rt: Runtime, model: ImageId) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"config\.mounts has 33 mounts of image {model}, at most 32 are allowed"
    ):
        mounting(rt, *(volume(at=f"/{number}") for number in range(MAX_OF_ONE_IMAGE + 1)))
