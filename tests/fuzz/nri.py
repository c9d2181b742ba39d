"""Data from NRI plugins: frames and messages on their socket, and changes of a container in an answer."""

import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from shim.api.nri import nri_pb2 as nri
from shim.api.nri.ttrpc_pb2 import Request, Response
from shim.domain.errors import FailedPrecondition
from shim.nri import ttrpc, wire
from shim.nri.merge import Adjustments
from shim.nri.mux import PLUGIN, RUNTIME, ProtocolError, frames
from shim.nri.wire import IncomingCall, Reply, Wire
from shim.oci.cdi import find
from tests.fuzz.target import NESTED, Target, encoded, pure, shape


def _wire(data: bytes) -> None:
    def outcome(cuts: int) -> tuple[list[IncomingCall | Reply], str]:
        received, found = Wire(), list[IncomingCall | Reply]()
        try:
            for at in range(0, len(data), cuts):
                found += received.receive(data[at : at + cuts])
        except ProtocolError as error:
            return found, str(error)
        return found, ""

    found, broken = outcome(len(data) or 1)
    if len(data) < 4096:
        assert outcome(3) == (found, broken)
    if broken:
        raise ProtocolError(broken)


def _answer(data: bytes) -> None:
    try:
        answer = nri.CreateContainerResponse.FromString(data)
    except DecodeError:
        return
    request = nri.CreateContainerRequest(container=nri.Container(id="c", env=["A=1"], args=["sh"]))
    merged = Adjustments(request)
    merged.add(answer, plugin="10-first")
    merged.add(answer, plugin="20-second")


def _specification(data: bytes) -> None:
    with TemporaryDirectory() as directory:
        (Path(directory) / "a.yaml").write_bytes(data)
        find(["v.com/c=d"], directories=[directory])


def _message(connection: int, kind: int, content: bytes) -> bytes:
    return frames(connection, ttrpc.encode(ttrpc.Message(1, kind, content)))


CALL = Request(service=wire.RUNTIME_SERVICE, method="UpdateContainers", payload=b"p").SerializeToString()
ANSWER = Response(payload=b"q").SerializeToString()
CHANGE = nri.CreateContainerResponse(
    adjust=nri.ContainerAdjustment(
        env=[nri.KeyValue(key="-A"), nri.KeyValue(key="A", value="2")],
        mounts=[nri.Mount(destination="-/a"), nri.Mount(destination="/b")],
        annotations={"-x": "", "y": "z"},
        args=["", "run"],
        linux=nri.LinuxContainerAdjustment(
            devices=[nri.LinuxDevice(path="/dev/x")],
            rdt=nri.LinuxRdt(remove=True),
            resources=nri.LinuxResources(unified={"a": "b"}, hugepage_limits=[nri.HugepageLimit(page_size="2MB")]),
        ),
    ),
    update=[nri.ContainerUpdate(container_id="d", ignore_failure=True)],
).SerializeToString()

SPECIFICATION = {
    "kind": "v.com/c",
    "devices": [
        {
            "name": "d",
            "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [{"path": "/dev/null"}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b"}],
                "hooks": [{"hookName": "prestart", "path": "/h"}],
            },
        }
    ],
}

TARGETS = (
    Target(
        name="nri-wire",
        corpus=[_message(RUNTIME, 1, CALL) + _message(PLUGIN, 2, ANSWER), _message(RUNTIME, 1, CALL)[:20]],
        words=(
            *(
                struct.pack(">II", connection, size)
                for connection in (0, 1, 2, 77)
                for size in (0, 10, 1 << 22, 1 << 31)
            ),
            *(struct.pack(">IIBB", size, 1, kind, 0) for size in (0, 5, 1 << 22, (1 << 32) - 1) for kind in (1, 2, 3)),
        ),
        declared=(ProtocolError,),
        open=pure(_wire),
        strategy=st.lists(
            st.builds(
                lambda connection, content: struct.pack(">II", connection, len(content)) + content,
                st.integers(0, 3),
                st.binary(max_size=40),
            ),
            max_size=6,
        ).map(b"".join),
        enormous=(
            lambda: struct.pack(">II", 1, (1 << 22) + 10) + b"x" * (8 << 20),
            lambda: _message(RUNTIME, 1, CALL) * 50_000,
        ),
    ),
    Target(
        name="nri-adjustment",
        corpus=[CHANGE],
        words=(b"\n\x02-A", b"\n\x01-", b"\x12\x00"),
        declared=(FailedPrecondition,),
        open=pure(_answer),
        enormous=(lambda: CHANGE * 100,),
    ),
    Target(
        name="nri-cdi",
        corpus=[json.dumps(SPECIFICATION).encode()],
        words=(b"!!timestamp", b"&a", b"*a", b"- ", b": ", b"containerEdits"),
        declared=(FailedPrecondition,),
        open=pure(_specification),
        strategy=encoded(shape(SPECIFICATION)),
        enormous=NESTED,
    ),
)
