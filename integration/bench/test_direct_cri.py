# ruff: noqa: N802 - gRPC names the methods
"""The client without a library understands a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from integration.bench.direct_cri import direct_cri
from integration.cri import Cri
from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc


class _Images(api_pb2_grpc.ImageServiceServicer):
    def PullImage(self, request: pb.PullImageRequest, context: grpc.ServicerContext) -> pb.PullImageResponse:
        if request.image.image == "gone":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such image")
        return pb.PullImageResponse(image_ref=f"id of {request.image.image}")


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[Cri]:
    server = grpc.server(ThreadPoolExecutor(1))
    api_pb2_grpc.add_ImageServiceServicer_to_server(_Images(), server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    try:
        with direct_cri(tmp_path / "s") as client:
            yield client
    finally:
        server.stop(None).wait()


def pull(direct: Cri, image: str) -> str:
    return direct.images.PullImage(pb.PullImageRequest(image=pb.ImageSpec(image=image))).image_ref


def test_an_answer_is_read_on_each_of_many_streams(direct: Cri) -> None:
    for number in range(1000):  # more bytes than the initial window of 64 KiB of a connection
        image = f"registry.example/{number}/{'a' * 100}"
        assert pull(direct, image) == f"id of {image}"


def test_a_status_without_a_message_is_an_error(direct: Cri) -> None:
    with pytest.raises(RuntimeError, match="PullImage failed"):
        pull(direct, "gone")

    assert pull(direct, "here") == "id of here"
