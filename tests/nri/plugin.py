"""A plugin in Python for tests: it speaks NRI over a real socket, with independent code for the framing.

It is written against the table of wire facts and not with the server's code, so that each shows a fault of the other.
As a program it is a plugin that can be installed on a node: it registers, and writes what it hears to a file.
"""

import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from shim.api.nri import nri_pb2 as nri
from shim.api.nri import ttrpc_pb2 as ttrpc

TO_PLUGIN, TO_RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2
SECONDS = 20.0

Handler = Callable[[Any], object]
"""Takes the request. A returned message is the answer."""


class Refused(Exception):
    """The runtime or this plugin answers with an error."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


class TestPlugin:
    """A plugin. `handlers` are called with the request of a method, and return its answer or raise Refused."""

    __test__ = False

    def __init__(self, opened: socket.socket, *, events: int = 0, only: set[str] | None = None) -> None:
        """With `only`, the plugin implements these methods alone, like an older plugin."""
        self.socket = opened
        self.handlers: dict[str, Handler] = {}
        self.heard: list[tuple[str, Any]] = []
        """Method and request of each call, in order."""
        self.closed = threading.Event()
        self._events = events
        self._only = only
        self._answers: queue.Queue[ttrpc.Response] = queue.Queue()
        self._sending = threading.Lock()
        self._calling = threading.Lock()
        self._news = threading.Condition()
        self._stream = 1
        threading.Thread(target=self._read, daemon=True).start()

    def register(self, index: str, name: str) -> None:
        """Register with the runtime."""
        request = nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index, NRI_version="0.12.1")
        self.call("RegisterPlugin", request)

    def update(self, *updates: nri.ContainerUpdate) -> list[nri.ContainerUpdate]:
        """Request updates without an event; return the failed updates."""
        answer = self.call("UpdateContainers", nri.UpdateContainersRequest(update=updates))
        return list(nri.UpdateContainersResponse.FromString(answer).failed)

    def call(self, method: str, request: Message, *, service: str = "nri.pkg.api.v1alpha1.Runtime") -> bytes:
        """Call the runtime. Raise Refused."""
        with self._calling:
            message = ttrpc.Request(service=service, method=method, payload=request.SerializeToString())
            self.send(TO_RUNTIME, REQUEST, message.SerializeToString(), stream=self._stream)
            self._stream += 2
            answer = self._answers.get(timeout=SECONDS)
        if answer.status.code:
            raise Refused(answer.status.message, answer.status.code)
        return answer.payload

    def send(self, connection: int, kind: int, content: bytes, *, stream: int, frame: int = 1 << 20) -> None:
        """Send a message in frames of at most `frame` bytes."""
        whole = struct.pack(">IIBB", len(content), stream, kind, 0) + content
        with self._sending:
            for at in range(0, len(whole), frame):
                piece = whole[at : at + frame]
                self.socket.sendall(struct.pack(">II", connection, len(piece)) + piece)

    def methods(self) -> list[str]:
        """Return the methods of all calls, without Configure and Synchronize."""
        return [method for method, _ in list(self.heard) if method not in {"Configure", "Synchronize"}]

    def wait_heard(self, method: str, count: int = 1) -> Any:
        """Wait for the nth call of a method and return its request."""

        def found() -> list[Any]:
            return [request for name, request in self.heard if name == method]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, SECONDS), (method, self.methods())
            return found()[count - 1]

    def close(self) -> None:
        with suppress(OSError):  # the runtime has closed it already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _read(self) -> None:
        buffers = {TO_PLUGIN: bytearray(), TO_RUNTIME: bytearray()}
        try:
            while True:
                connection, size = struct.unpack(">II", self._exactly(8))
                buffers[connection] += self._exactly(size)
                self._take(connection, buffers[connection])
        except (OSError, EOFError):
            pass
        finally:
            self.closed.set()

    def _take(self, connection: int, buffer: bytearray) -> None:
        while len(buffer) >= 10:
            length, stream, _, _ = struct.unpack_from(">IIBB", buffer)
            if len(buffer) < 10 + length:
                return
            content = bytes(buffer[10 : 10 + length])
            del buffer[: 10 + length]
            if connection == TO_RUNTIME:
                self._answers.put(ttrpc.Response.FromString(content))
            else:
                threading.Thread(target=self._serve, args=(stream, content), daemon=True).start()

    def _serve(self, stream: int, content: bytes) -> None:
        request = ttrpc.Request.FromString(content)
        answer = ttrpc.Response()
        try:
            answer.payload = self._answer(request.method, request.payload).SerializeToString()
        except Refused as error:
            answer.status.code, answer.status.message = error.code, str(error)
        try:
            self.send(TO_PLUGIN, RESPONSE, answer.SerializeToString(), stream=stream)
        except OSError:
            self.closed.set()

    def _answer(self, method: str, payload: bytes) -> Message:
        if self._only is not None and method not in {*self._only, "Configure", "Synchronize"}:
            raise Refused("unimplemented", 12)
        kind, answer = kinds(method)
        request: Any = kind.FromString(payload)
        with self._news:
            self.heard.append((method, request))
            self._news.notify_all()
        handler = self.handlers.get(method)
        found = handler(request) if handler else None
        if isinstance(found, Message):
            return found
        if method == "Configure":
            return nri.ConfigureResponse(events=self._events)
        if method == "Synchronize":
            return nri.SynchronizeResponse(more=request.more)
        return answer()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            some = self.socket.recv(min(size - len(data), 1 << 20))
            if not some:
                raise EOFError
            data += some
        return bytes(data)


def kinds(method: str) -> tuple[type[Message], type[Message]]:
    """Return the request and response types of a plugin's method."""
    match method:
        case "Shutdown":
            return nri.Empty, nri.Empty
        case "StateChange":
            return nri.StateChangeEvent, nri.Empty
        case _:
            return getattr(nri, f"{method}Request"), getattr(nri, f"{method}Response")


@contextmanager
def arriving(path: Path, **fields: Any) -> Iterator[TestPlugin]:
    """A plugin that is connected but not registered, inside the block."""
    opened = socket.socket(socket.AF_UNIX)
    opened.connect(str(path))
    plugin = TestPlugin(opened, **fields)
    try:
        yield plugin
    finally:
        plugin.close()


@contextmanager
def connected(path: Path, index: str, name: str, **fields: Any) -> Iterator[TestPlugin]:
    """A plugin that is registered and synchronized inside the block."""
    with arriving(path, **fields) as plugin:
        plugin.register(index, name)
        plugin.wait_heard("Synchronize")
        yield plugin


def main() -> None:
    """Run as an installed plugin, which writes each call to the file that its configuration names."""
    plugin = TestPlugin(socket.socket(fileno=int(os.environ["NRI_PLUGIN_SOCKET"])))
    plugin.register(os.environ["NRI_PLUGIN_IDX"], os.environ["NRI_PLUGIN_NAME"])
    log = Path(plugin.wait_heard("Configure").config.strip())
    while not plugin.closed.wait(0.01):
        log.with_suffix(".new").write_text("\n".join(method for method, _ in plugin.heard) + "\n")
        log.with_suffix(".new").replace(log)
    sys.exit(0)


if __name__ == "__main__":
    main()
