"""Each RPC over gRPC, with the real domain and an Engine in memory."""

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri import chunks
from shim.cri.image_service import ImageService
from shim.runtime import Runtime
from tests.cri.conftest import Serve, Served
from tests.fakes.engine import FakeEngine


@pytest.fixture
def at(serve: Serve, rt: Runtime) -> Served:
    return serve(image=ImageService(rt))


def test_images_from_pull_to_remove(at: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    app = pb.ImageSpec(image="registry.example/app:v1")
    engine.publish_image(app.image)

    pulled = at.image.PullImage(
        pb.PullImageRequest(image=app, auth=pb.AuthConfig(username="me", password="hush"))
    ).image_ref
    at.image.PullImage(pb.PullImageRequest(image=app))
    assert [auth and auth.username for auth in engine.pull_auths] == ["me", None]
    assert at.image.ImageStatus(pb.ImageStatusRequest(image=app)).image.id == pulled
    assert at.image.ImageStatus(pb.ImageStatusRequest(image=app, verbose=True)).info
    assert len(at.image.ListImages(pb.ListImagesRequest()).images) == 3
    only = pb.ImageFilter(image=app)
    assert [image.id for image in at.image.ListImages(pb.ListImagesRequest(filter=only)).images] == [pulled]
    monkeypatch.setattr(chunks, "CHUNK", 2)
    assert [len(part.images) for part in at.image.StreamImages(pb.StreamImagesRequest())] == [2, 1]
    assert [len(part.images) for part in at.image.StreamImages(pb.StreamImagesRequest(filter=only))] == [1]

    at.image.RemoveImage(pb.RemoveImageRequest(image=app))
    assert not at.image.ImageStatus(pb.ImageStatusRequest(image=app)).HasField("image")


def test_disk_usage_of_images_is_reported(at: Served) -> None:
    assert at.image.ImageFsInfo(pb.ImageFsInfoRequest()).image_filesystems


@pytest.mark.parametrize("rpc", ["ImageStatus", "PullImage", "RemoveImage"])
def test_an_image_must_be_named(at: Served, rpc: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(at.image, rpc)(getattr(pb, f"{rpc}Request")())

    assert caught.value.details() == "image is missing"
