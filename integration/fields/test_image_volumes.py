"""Images as volumes of containers: `config.mounts` with an image."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.node import images as node_images
from integration.node.images import File, Image
from integration.node.mounts import mount_paths
from integration.pods.kubelet import Kubelet, Pod, refusal, wait_image, wait_no_image
from shim.api.v1 import api_pb2 as pb

Code = grpc.StatusCode
WITHOUT_IMAGE_MOUNTS = {"20.10", "26"}
MODEL = "node.test/model:1"


@dataclass(frozen=True, slots=True)
class Model:
    """An image that holds only files."""

    id: str
    digest: str
    """The reference by digest; empty if the engine has none."""


@pytest.fixture
def model(served: Served, kubelet: Kubelet) -> Iterator[Model]:
    """The image to mount. No container mounts it when it is removed."""
    if served.engine.name in WITHOUT_IMAGE_MOUNTS:
        pytest.skip("this engine mounts no images")
    files = (
        File("bin", mode=0o755, directory=True),
        File("bin/tool", b"#!/bin/sh\necho runs\n", mode=0o755),
        File("models/small", mode=0o755, directory=True),
        File("models/small/weights", b"1 2 3\n"),
        File("current", link="models/small"),
        File("away", link="../../../models"),
        File("nowhere", link="gone"),
    )
    image_id = node_images.load(served.engine.api, Image(MODEL, files, {"Labels": {"kind": "model"}}))
    wait_image(served.cri, MODEL)
    digests = kubelet.cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=MODEL))).image.repo_digests
    yield Model(image_id, digests[0] if digests else "")
    kubelet.remove_all()
    if node_images.image_id(served.engine.api, image_id) is not None:
        served.engine.api.remove_image(image_id, force=True)
    wait_no_image(served.cri, MODEL)


def volume(image: str = MODEL, sub_path: str = "", at: str = "/model", **fields: Any) -> pb.Mount:
    values: dict[str, Any] = {
        "container_path": at,
        "image": pb.ImageSpec(image=image),
        "image_sub_path": sub_path,
        "readonly": True,
    }
    return pb.Mount(**(values | fields))


def reported(mount: pb.Mount, model: Model) -> pb.Mount:
    """Return a mount as the status reports it."""
    copy = pb.Mount()
    copy.CopyFrom(mount)
    copy.image.image_ref = model.id
    return copy


def test_an_image_volume_on_an_engine_without_them_is_refused_with_the_reason(
    kubelet: Kubelet, pod: Pod, served: Served
) -> None:
    if served.engine.name not in WITHOUT_IMAGE_MOUNTS:
        pytest.skip("this engine mounts images")

    code, message = refusal(lambda: kubelet.created(pod, mounts=[volume()]))

    assert code == Code.UNIMPLEMENTED
    assert message == (
        "ImageVolumeMountFailed: config.mounts[0].image: "
        f"needs Docker Engine 28.0 (API 1.48); this one speaks {served.engine.api.api_version}"
    )


@pytest.mark.parametrize("readonly", [True, False], ids=["readonly", "readonly not set"])
def test_the_files_of_an_image_can_be_read_and_executed(
    kubelet: Kubelet, pod: Pod, model: Model, readonly: bool
) -> None:
    private = pb.PROPAGATION_PRIVATE
    propagation = private if readonly else pb.PROPAGATION_HOST_TO_CONTAINER
    mount = volume(selinux_relabel=True, recursive_read_only=readonly, readonly=readonly, propagation=propagation)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.inside(container, "cat /model/models/small/weights; /model/bin/tool") == "1 2 3\nruns\n"
    assert kubelet.inside(container, "touch /model/new") == "touch: /model/new: Read-only file system\n"
    assert "Read-only" in kubelet.inside(container, "rm /model/models/small/weights")
    assert list(kubelet.cri.container_status(container).mounts) == [reported(mount, model)]


@pytest.mark.parametrize("length", [41, 42])
@pytest.mark.usefixtures("model")
def test_a_sub_path_that_is_too_long_for_docker_29_is_refused(
    kubelet: Kubelet, pod: Pod, engine_name: str, length: int
) -> None:
    path = "/" + (length - 1) * "m"
    if length == 41 or not engine_name.startswith("29"):
        container = kubelet.started(pod, mounts=[volume(at=path)])
        assert kubelet.inside(container, f"cat {path}/models/small/weights") == "1 2 3\n"
        return

    code, message = refusal(lambda: kubelet.created(pod, mounts=[volume(at=path)]))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert message.startswith(
        "ImageVolumeMountFailed: config.mounts: the container_path of an image volume may have 41"
    )


@pytest.mark.parametrize(
    ("sub_path", "file"),
    [("models", "small/weights"), ("./models//small/", "weights"), ("current", "weights"), ("away/small", "weights")],
    ids=["directory", "cleaned", "link", "link that stays inside"],
)
def test_a_directory_of_an_image_is_mounted(kubelet: Kubelet, pod: Pod, model: Model, sub_path: str, file: str) -> None:
    mount = volume(sub_path=sub_path)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.inside(container, f"cat /model/{file}; ls /model/bin") == (
        "1 2 3\nls: /model/bin: No such file or directory\n"
    )
    assert list(kubelet.cri.container_status(container).mounts) == [reported(mount, model)]


@pytest.mark.parametrize(
    ("sub_path", "reason"),
    [
        ("models/large", "'models/large' is not in it"),
        ("nowhere", "'nowhere' is not in it"),
        ("models/small/weights", "'models/small/weights' is a regular file of it, not a directory"),
    ],
    ids=["missing", "dangling link", "file"],
)
@pytest.mark.usefixtures("model")
def test_a_sub_path_that_is_no_directory_is_refused_at_create(
    kubelet: Kubelet, pod: Pod, sub_path: str, reason: str
) -> None:
    mounts = [volume(sub_path="models"), volume(sub_path=sub_path, at="/other")]

    code, message = refusal(lambda: kubelet.created(pod, mounts=mounts))

    assert code == Code.FAILED_PRECONDITION
    assert message == f"ImageVolumeMountFailed: config.mounts[1].image_sub_path: image '{MODEL}': {reason}"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "host path": ({"host_path": "/tmp"}, "config.mounts[0].host_path and image must not both be given"),
    "propagation": (
        {"propagation": pb.PROPAGATION_BIDIRECTIONAL},
        "config.mounts[0].propagation: mounts inside an image volume cannot propagate to the host",
    ),
    "absolute sub-path": ({"image_sub_path": "/etc"}, "config.mounts[0].image_sub_path '/etc' is not relative"),
    "sub-path above": ({"image_sub_path": "../x"}, "config.mounts[0].image_sub_path '../x' must not hold '..'"),
    "sub-path back": ({"image_sub_path": "a/../b"}, "config.mounts[0].image_sub_path 'a/../b' must not hold '..'"),
    "NUL in sub-path": ({"image_sub_path": "a\0b"}, "config.mounts[0].image_sub_path holds a NUL"),
    "NUL in image": ({"image": "a\0b"}, "config.mounts[0].image.image holds a NUL"),
}


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_an_image_volume_is_refused_by_the_name_of_the_field(
    kubelet: Kubelet, pod: Pod, fields: dict[str, Any], message: str
) -> None:
    code, said = refusal(lambda: kubelet.created(pod, mounts=[volume(**fields)]))

    assert code == Code.INVALID_ARGUMENT
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("image", "code"),
    [("node.test/nowhere:1", Code.NOT_FOUND), ("No Reference", Code.INVALID_ARGUMENT)],
    ids=["unknown", "no reference"],
)
@pytest.mark.usefixtures("model")
def test_a_missing_image_is_refused(kubelet: Kubelet, pod: Pod, image: str, code: grpc.StatusCode) -> None:
    plain_code, message = refusal(lambda: kubelet.created(pod, mounts=[volume(image)]))

    assert plain_code == code
    assert message.startswith("ImageVolumeMountFailed: config.mounts[0].image.image: ")


def test_one_image_can_be_mounted_in_several_places(kubelet: Kubelet, pod: Pod, model: Model) -> None:
    mounts = [
        volume(at="/all"),
        volume(model.id, at="/by-id"),
        volume(at="/tools", sub_path="bin"),
        volume(at="/small", sub_path="models/small"),
    ]
    if model.digest:
        mounts.append(volume(model.digest, at="/by-digest"))

    container = kubelet.started(pod, mounts=mounts)

    script = "cat /all/models/small/weights /by-id/models/small/weights /small/weights; /tools/tool"
    assert kubelet.inside(container, script) == "1 2 3\n" * 3 + "runs\n"
    assert list(kubelet.cri.container_status(container).mounts) == [reported(mount, model) for mount in mounts]


@pytest.mark.parametrize("start", [True, False], ids=["running", "created"])
def test_a_mounted_image_cannot_be_removed(kubelet: Kubelet, pod: Pod, model: Model, start: bool) -> None:
    container = (kubelet.started if start else kubelet.created)(pod, mounts=[volume()])
    name = kubelet.cri.container_status(container).metadata.name

    request = pb.RemoveImageRequest(image=pb.ImageSpec(image=MODEL))
    code, message = refusal(lambda: kubelet.cri.images.RemoveImage(request))

    assert code == Code.FAILED_PRECONDITION
    assert f"mounted by container k8s_{name}_" in message
    assert message.endswith(f"({container[:12]}); remove the container first")
    assert kubelet.cri.images.ImageStatus(pb.ImageStatusRequest(image=request.image)).image.id == model.id

    kubelet.cri.remove_container(container)
    kubelet.cri.images.RemoveImage(request)


def test_the_status_outlives_the_server_and_the_image(kubelet: Kubelet, pod: Pod, served: Served, model: Model) -> None:
    mount = volume(sub_path="models")
    container = kubelet.started(pod, mounts=[mount])

    served.server.kill()
    served.restart()
    assert list(kubelet.cri.container_status(container).mounts) == [reported(mount, model)]

    served.engine.api.remove_image(model.id, force=True)
    wait_no_image(served.cri, MODEL)
    assert list(kubelet.cri.container_status(container).mounts) == [reported(mount, model)]
    assert container in {listed.id for listed in kubelet.cri.containers()}
    assert kubelet.inside(container, "cat /model/small/weights") == "1 2 3\n"


@pytest.mark.usefixtures("model")
def test_an_image_volume_leaves_no_mount_on_the_node(kubelet: Kubelet, pod: Pod) -> None:
    before = mount_paths()
    container = kubelet.started(pod, mounts=[volume(), volume(at="/small", sub_path="current")])
    assert len(mount_paths() - before) >= 2
    with pytest.raises(grpc.RpcError):
        kubelet.created(pod, mounts=[volume(), volume(at="/other", sub_path="gone")])

    kubelet.cri.remove_container(container)

    assert mount_paths() == before
