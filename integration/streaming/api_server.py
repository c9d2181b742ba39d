"""The part of a Kubernetes API server that kubectl needs for exec, attach and port-forward.

It gets the URL from the CRI and forwards the upgraded connection, as API server and kubelet do together.
"""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc

from integration.cri import NAMESPACE, Cri
from shim.api.v1 import api_pb2 as pb

_HEAD_END = b"\r\n\r\n"
_PIECE = 256 * 1024

_RESOURCES = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [
        {"name": "pods", "singularName": "", "namespaced": True, "kind": "Pod", "verbs": ["get"], "shortNames": ["po"]}
    ],
}


class ApiServer:
    """Serves the pods of a node on loopback. `pods` maps names of pods to ids of their sandboxes."""

    def __init__(self, cri: Cri) -> None:
        self.pods: dict[str, str] = {}
        self._cri = cri
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._open: set[socket.socket] = set()
        self._documents: dict[str, Callable[[], dict[str, Any]]] = {
            "/api": lambda: {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": lambda: {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": lambda: _RESOURCES,
            "/version": lambda: {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
        }
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The argument of `kubectl --server`."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop the server and close its connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in list(self._open):
            _shut(connected)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            with client, suppress(OSError):
                self._answer(client)
        finally:
            self._open.discard(client)

    def _answer(self, client: socket.socket) -> None:
        head, early = _read_head(client)
        request_line, *lines = head.decode("latin-1").split("\r\n")
        target = urlsplit(request_line.split(" ")[1])
        parts = target.path.removeprefix(f"/api/v1/namespaces/{NAMESPACE}/pods/").split("/")
        if target.path in self._documents:
            _send_json(client, 200, self._documents[target.path]())
        elif len(parts) == 1 and parts[0] in self.pods:
            _send_json(client, 200, self._pod(parts[0]))
        elif len(parts) == 2 and parts[0] in self.pods:
            self._stream(client, parts, parse_qs(target.query), lines, early)
        else:
            _send_json(client, 404, _failure(404, "NotFound", f"there is no {target.path}"))

    def _pod(self, name: str) -> dict[str, Any]:
        containers = [
            {"name": it.metadata.name, "image": it.image.image, "stdin": True, "tty": self._has_tty(it.id)}
            for it in self._containers(name)
        ]
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"containers": containers or [{"name": "none"}]},
            "status": {"phase": "Running"},
        }

    def _has_tty(self, container_id: str) -> bool:
        return self._cri.container_status(container_id).labels.get("tty", "") == "true"

    def _containers(self, pod: str) -> list[pb.Container]:
        return self._cri.containers(pod_sandbox_id=self.pods[pod])

    def _stream(
        self,
        client: socket.socket,
        parts: list[str],
        query: dict[str, list[str]],
        lines: list[str],
        early: bytes,
    ) -> None:
        try:
            url = self._url(parts[0], parts[1], query)
        except grpc.RpcError as error:
            _send_json(client, 500, _failure(500, "InternalError", str(error.details())))
            return
        where = urlsplit(url)
        with socket.create_connection((where.hostname or "", where.port or 0)) as runtime:
            self._open.add(runtime)
            method = "GET" if any("websocket" in line.lower() for line in lines) else "POST"
            head = [f"{method} {where.path} HTTP/1.1", *lines, "X-Forwarded-For: 127.0.0.1"]
            runtime.sendall("\r\n".join(head).encode("latin-1") + _HEAD_END + early)
            _splice(client, runtime)
            self._open.discard(runtime)

    def _url(self, pod: str, verb: str, query: dict[str, list[str]]) -> str:
        if verb == "portforward":
            ports = [int(port) for several in query.get("ports", []) for port in several.split(",")]
            forward = pb.PortForwardRequest(pod_sandbox_id=self.pods[pod], port=ports)
            return self._cri.runtime.PortForward(forward).url
        name = query.get("container", [""])[0]
        container = next(it.id for it in self._containers(pod) if not name or it.metadata.name == name)
        flags = {flag: query.get(flag) in (["true"], ["1"]) for flag in ("stdin", "stdout", "stderr", "tty")}
        # The API server leaves out stderr for a terminal.
        flags["stderr"] = flags["stderr"] and not flags["tty"]
        if verb == "attach":
            return self._cri.runtime.Attach(pb.AttachRequest(container_id=container, **flags)).url
        request = pb.ExecRequest(container_id=container, cmd=query.get("command", []), **flags)
        return self._cri.runtime.Exec(request).url


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while _HEAD_END not in data:
        piece = client.recv(_PIECE)
        if not piece:
            raise OSError("no request")
        data += piece
    head, _, early = data.partition(_HEAD_END)
    return head, early


def _splice(client: socket.socket, runtime: socket.socket) -> None:
    """Copy both ways until either side ends, then end the other side.

    Kubernetes' proxies close both sides at once, and a busy client can lose data that it has not read: kubectl takes an
    exec whose status is lost for a success. Here a client can read everything that was sent to it.
    """
    upward = threading.Thread(target=_copy_up, args=(client, runtime), daemon=True)
    upward.start()
    _copy(runtime, client)
    with suppress(OSError):
        client.shutdown(socket.SHUT_WR)
    upward.join()


def _copy_up(client: socket.socket, runtime: socket.socket) -> None:
    _copy(client, runtime)
    _shut(runtime)
    _shut(client)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _failure(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _send_json(client: socket.socket, status: int, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    client.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
