"""A system bus with the part of logind that a kubelet needs: it announces a shutdown and waits for the inhibitor.

A cluster in isolation has no systemd. jeepney encodes and decodes the messages; this module is the bus. A signal of one
client reaches all others.
"""

import array
import os
import socket
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_return, new_signal
from jeepney.low_level import Parser

from integration.waiting import wait_until

_MANAGER = DBusAddress(
    "/org/freedesktop/login1", bus_name="org.freedesktop.login1", interface="org.freedesktop.login1.Manager"
)
_DELAY_SECONDS = 3600
"""The longest delay of a shutdown that logind offers: more than any kubelet asks for."""


class Logind:
    """Serves clients on a socket; the last that takes an inhibitor lock is the kubelet."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:path={path}"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._clients: list[socket.socket] = []
        self._kubelet: socket.socket | None = None
        self._lock_end = -1
        self._serials = count(1)
        threading.Thread(target=self._accept, name="logind", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    @property
    def is_inhibited(self) -> bool:
        """Whether a kubelet holds an inhibitor lock."""
        return self._lock_end >= 0

    def shut_down(self, *, active: bool) -> None:
        """Announce a shutdown of the machine, or with `active=False` its cancellation."""
        assert self._kubelet is not None, "no kubelet has taken a lock yet"
        self._send(self._kubelet, new_signal(_MANAGER, "PrepareForShutdown", "b", (active,)))

    def wait_released(self, seconds: float) -> None:
        """Wait until the kubelet releases its lock."""
        wait_until(lambda: not self.is_inhibited, seconds)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), name="client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):  # it has disconnected
            rest = _authenticate(client)
            parser = Parser()
            self._clients.append(client)
            try:
                while rest:
                    for message in parser.feed(rest):
                        self._take(client, message)
                    rest = client.recv(65536)
            finally:
                self._clients.remove(client)

    def _take(self, client: socket.socket, message: Message) -> None:
        match message.header.message_type:
            case MessageType.method_call:
                self._answer(client, message)
            case MessageType.signal:
                for other in self._clients:
                    if other is not client:
                        self._send(other, message)

    def _answer(self, client: socket.socket, call: Message) -> None:
        match call.header.fields[HeaderFields.member]:
            case "Hello":
                self._send(client, new_method_return(call, "s", (":1.1",)))
            case "Get":
                self._send(client, new_method_return(call, "v", (("t", _DELAY_SECONDS * 1_000_000),)))
            case "Inhibit":
                self._inhibit(client, call)
            case _:
                self._send(client, new_method_return(call))

    def _inhibit(self, client: socket.socket, call: Message) -> None:
        """Send one end of a pipe: the lock lasts until the kubelet closes it."""
        ours, theirs = os.pipe()
        try:
            self._send(client, new_method_return(call, "h", (theirs,)))
        finally:
            os.close(theirs)
        self._kubelet, self._lock_end = client, ours
        threading.Thread(target=self._watch, args=(ours,), name="inhibitor", daemon=True).start()

    def _watch(self, end: int) -> None:
        os.read(end, 1)  # returns when the other end is closed
        if self._lock_end == end:
            self._lock_end = -1
        os.close(end)

    def _send(self, client: socket.socket, message: Message) -> None:
        if message.header.message_type is MessageType.signal:
            message.header.fields[HeaderFields.sender] = _MANAGER.bus_name
        fds = array.array("i")
        data = message.serialise(next(self._serials), fds=fds)
        socket.send_fds(client, [data], list(fds))


def _authenticate(client: socket.socket) -> bytes:
    """Authenticate any client that follows the protocol; return the first bytes after it."""
    data = b""
    while True:
        received = client.recv(4096)
        if not received:
            return b""
        data += received
        while b"\r\n" in data:
            line, _, data = data.partition(b"\r\n")
            words = line.lstrip(b"\0").split()
            if words == [b"BEGIN"]:
                return data or client.recv(65536)
            client.sendall(_reply(words))


def _reply(words: list[bytes]) -> bytes:
    if words[:2] == [b"AUTH", b"EXTERNAL"]:
        return b"OK 0123456789abcdef0123456789abcdef\r\n"
    if words == [b"NEGOTIATE_UNIX_FD"]:
        return b"AGREE_UNIX_FD\r\n"
    return b"REJECTED EXTERNAL\r\n"
