"""Responses of a Docker Engine to the frequent calls of a node, as bytes. Invented, but of realistic size."""

import json
from dataclasses import dataclass
from typing import Any

from shim.engine.stdcopy import STDOUT

CID = "5f2d" * 16
EXEC_ID = "9c1b" * 16
ROWS = 100
"""Containers in the list."""
EVENTS = 500
ARCHIVE_MIB = 64

_PIECE = 64 * 1024
"""Bytes of a read from the socket, as in `shim.engine.connection`."""
_COPY = 32 * 1024
"""Bytes that Go's io.Copy writes at a time, and so the size of an archive's chunks."""
_HEAD = (
    "Api-Version: 1.51\r\n{type}Docker-Experimental: false\r\nOstype: linux\r\nServer: Docker/28.5.2 (linux)\r\n"
    "Date: Mon, 06 Oct 2025 10:11:12 GMT\r\n{length}\r\n"
)
_LABELS = {
    f"io.kubernetes.{name}": value
    for name, value in {
        "container.name": "server",
        "pod.name": "web-7c5ddbdf54-x9k2p",
        "pod.namespace": "default",
        "pod.uid": "0b5f4d1e-7a5b-4a61-9c39-2a1d0c7a8a10",
        "pydockershim.config": json.dumps({"metadata": {"name": "server"}, "envs": ["x" * 40] * 20}),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response."""

    method: str
    target: str
    arriving: tuple[bytes, ...]
    """The result of each read from the socket."""
    body: bytes = b""

    @property
    def upgrades(self) -> bool:
        """Whether the response upgrades the connection, which then serves no further request."""
        return self.arriving[0].startswith(b"HTTP/1.1 101")


def version() -> Exchange:
    """Return the first exchange of a new connection."""
    answer = {"Version": "28.5.2", "ApiVersion": "1.51", "MinAPIVersion": "1.24"}
    return Exchange("GET", "/version", _sized(200, answer))


def inspect() -> Exchange:
    """Return an inspect of a container: 7 KiB in one chunk."""
    return Exchange("GET", f"/v1.51/containers/{CID}/json", _chunked(_encoded(_container())))


def containers() -> Exchange:
    """Return a list of ROWS containers."""
    row = {"Id": CID, "Names": ["/k8s_server"], "ImageID": "sha256:" + CID, "Created": 1, "State": "running"}
    rows = [{**row, "Image": "busybox", "Labels": _LABELS, "Mounts": [], "Ports": []}] * ROWS
    return Exchange("GET", "/v1.51/containers/json?all=1", _chunked(_encoded(rows)))


def start() -> Exchange:
    """Return a start, whose response has no body."""
    return Exchange("POST", f"/v1.51/containers/{CID}/start", (_head("204 No Content"),))


def exec_calls() -> tuple[Exchange, Exchange, Exchange]:
    """Return the three calls of an exec: create, start with some output, inspect."""
    made = b'{"AttachStdout":true,"AttachStderr":true,"Cmd":["cat","/proc/uptime"]}'
    state = {"ID": EXEC_ID, "Running": False, "ExitCode": 0, "Pid": 4711, "ContainerID": CID, "OpenStdin": False}
    output = b"12345.67 23456.78\n"
    upgrade = (
        b"HTTP/1.1 101 UPGRADED\r\nApi-Version: 1.51\r\nConnection: Upgrade\r\n"
        b"Content-Type: application/vnd.docker.multiplexed-stream\r\nUpgrade: tcp\r\n\r\n"
        + bytes([STDOUT, 0, 0, 0])
        + len(output).to_bytes(4, "big")
        + output
    )
    return (
        Exchange("POST", f"/v1.51/containers/{CID}/exec", _sized(201, {"Id": EXEC_ID}), made),
        Exchange("POST", f"/v1.51/exec/{EXEC_ID}/start", (upgrade,), b'{"Detach":false,"Tty":false}'),
        Exchange("GET", f"/v1.51/exec/{EXEC_ID}/json", _sized(200, state)),
    )


def events() -> Exchange:
    """Return EVENTS events, each in a separate read."""
    actor = {"ID": CID, "Attributes": {**_LABELS, "image": "busybox", "name": "k8s_server"}}
    event = {"Type": "container", "Action": "start", "Actor": actor, "time": 1, "timeNano": 1759745472123456789}
    chunk = _chunk(_encoded(event))
    return Exchange("GET", "/v1.51/events", (_head("200 OK", length=_CHUNKED), *[chunk] * EVENTS, _END))


def archive() -> Exchange:
    """Return a large body: ARCHIVE_MIB in chunks as Go copies them."""
    responses = _chunk(b"x" * _COPY) * (ARCHIVE_MIB * 1024 * 1024 // _COPY) + _END
    cut = tuple(responses[at : at + _PIECE] for at in range(0, len(responses), _PIECE))
    return Exchange("GET", f"/v1.51/containers/{CID}/archive", (_head("200 OK", length=_CHUNKED), *cut))


_CHUNKED = "Transfer-Encoding: chunked\r\n"
_END = b"0\r\n\r\n"


def _head(status: str, *, length: str = "") -> bytes:
    kind = "Content-Type: application/json\r\n" if length else ""
    return f"HTTP/1.1 {status}\r\n{_HEAD.format(type=kind, length=length)}".encode()


def _sized(status: int, answer: Any) -> tuple[bytes, ...]:
    content = _encoded(answer)
    return (_head(f"{status} OK", length=f"Content-Length: {len(content)}\r\n") + content,)


def _chunked(content: bytes) -> tuple[bytes, ...]:
    responses = _head("200 OK", length=_CHUNKED) + _chunk(content) + _END
    return tuple(responses[at : at + _PIECE] for at in range(0, len(responses), _PIECE))


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def _encoded(answer: Any) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"


def _container() -> dict[str, Any]:
    mount = {"Type": "bind", "Source": "/var/lib/kubelet/pods/x/volumes/y", "Destination": "/y", "Mode": "", "RW": True}
    host = {"NetworkMode": f"container:{CID}", "CgroupParent": "kubepods-burstable.slice", "Memory": 1 << 28}
    return {
        "Id": CID,
        "Created": "2025-10-06T10:11:12.123456789Z",
        "Path": "/bin/server",
        "Args": ["--flag"] * 10,
        "State": {"Status": "running", "Running": True, "Pid": 4711, "StartedAt": "2025-10-06T10:11:12.423456789Z"},
        "Image": "sha256:" + CID,
        "Name": "/k8s_server",
        "HostConfig": {**host, "Binds": ["/a:/b"] * 8, "MaskedPaths": ["/proc/asound"] * 10, "LogConfig": {"Type": ""}},
        "GraphDriver": {"Name": "overlay2", "Data": {"LowerDir": "/var/lib/docker/overlay2/" + "l/" * 300}},
        "Mounts": [mount] * 8,
        "Config": {"Hostname": "web", "Env": ["KUBERNETES_SERVICE_HOST=10.96.0.1"] * 30, "Labels": _LABELS},
        "NetworkSettings": {"Networks": {}},
    }
