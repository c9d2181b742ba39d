# ruff: noqa: N802 - gRPC names the methods
"""The client without a library understands what a real server says."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from integration.bench.direct_cri import DirectCri
from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc


class _Images(api_pb2_grpc.ImageServiceServicer):
    def PullImage(self, request: pb.PullImageRequest, context: grpc.ServicerContext) -> pb.PullImageResponse:
        if request.image.image == "gone":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such image")
        return pb.PullImageResponse(image_ref=f"id of {request.image.image}")


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[DirectCri]:
    server = grpc.server(ThreadPoolExecutor(1))
    api_pb2_grpc.add_ImageServiceServicer_to_server(_Images(), server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    try:
        with DirectCri(tmp_path / "s") as client:
            yield client
    finally:
        server.stop(None).wait()


def test_an_answer_is_read_on_each_of_many_streams(direct: DirectCri) -> None:
    for number in range(1000):  # more than fits into the window of 64 KiB that a connection begins with
        image = f"registry.example/{number}/{'a' * 100}"
        assert direct.pull(image).image_ref == f"id of {image}"


def test_a_status_alone_is_an_error(direct: DirectCri) -> None:
    with pytest.raises(RuntimeError, match="PullImage gone"):
        direct.pull("gone")

    assert direct.pull("here").image_ref == "id of here"
