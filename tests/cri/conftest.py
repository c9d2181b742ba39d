"""A real gRPC server on a real unix socket, with a servicer from the test."""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import structlog

from shim.api.v1 import api_pb2_grpc as api
from shim.base import log
from shim.cri.admission import Admission
from shim.cri.interceptors import NamesOf
from shim.cri.server import CriServer

SECONDS = 20
"""Limit for the waits of a test."""


@dataclass
class Served:
    server: CriServer
    path: Path
    runtime: api.RuntimeServiceStub
    image: api.ImageServiceStub


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as cleanup:

        def start(
            runtime: api.RuntimeServiceServicer | None = None,
            image: api.ImageServiceServicer | None = None,
            path: Path = tmp_path / "cri.sock",
            admission: Admission | None = None,
            names_of: NamesOf = lambda _: {},
        ) -> Served:
            server = CriServer(
                endpoint=f"unix://{path}",
                runtime=runtime or api.RuntimeServiceServicer(),
                image=image or api.ImageServiceServicer(),
                environ={},
                admission=admission,
                names_of=names_of,
            )
            server.start()
            cleanup.callback(server.stop)
            channel = cleanup.enter_context(client(path))
            return Served(server, path, api.RuntimeServiceStub(channel), api.ImageServiceStub(channel))

        yield start


def client(path: Path) -> grpc.Channel:
    size = 64 << 20
    return grpc.insecure_channel(
        f"unix:{str(path).replace('%', '%25').replace(' ', '%20')}",
        options=[
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", size),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """Captures log lines as JSON."""
    stream, before = io.StringIO(), structlog.get_config()
    log.configure(level="debug", style="json", stream=stream)
    yield stream
    structlog.configure(**before)
