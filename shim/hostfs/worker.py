"""The helper process: runs the calls of `shim.hostfs.client`, each in a thread.

A thread in a system call on a dead volume cannot be killed, not even together with its process. So the server does not
wait for this process to end: it only closes the socket.
"""

import importlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from shim.hostfs.packets import MAX_PACKET, PING, content_of, number_of, packed

MODULES = (
    "shim.base.atomic_files",
    "shim.hostfs.file_parts",
    "shim.hostfs.host_devices",
    "shim.hostfs.host_paths",
    "shim.hostfs.relabel",
)
"""Modules of functions that the server calls here. They and the modules on the command line are imported at the start.
So they have the version of the server that started this process, even if another version was installed since."""


_SERVER_ENDED = (BrokenPipeError, ConnectionResetError)
"""Exceptions of a socket that the server has closed while calls or answers were in transit."""


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Serve calls from the socket `descriptor` until the server closes it."""
    for module in (*MODULES, *modules):
        importlib.import_module(module)
    server = socket.socket(fileno=descriptor)
    with suppress(*_SERVER_ENDED):
        while packet := server.recv(MAX_PACKET):
            if packet == PING:
                server.send(packet)
                continue
            threading.Thread(target=_answer, args=(server, packet), daemon=True).start()
    os._exit(0)  # does not wait for hanging threads


def _answer(server: socket.socket, packet: bytes) -> None:
    number = number_of(packet)
    try:
        function, arguments = content_of(packet)
        answer = packed(number, (function(*arguments), None))
    except Exception as failure:  # noqa: BLE001 - raised again in the server
        answer = _pack_failure(number, failure)
    with suppress(*_SERVER_ENDED):
        server.send(answer)


def _pack_failure(number: int, failure: Exception) -> bytes:
    try:
        return packed(number, (None, failure))
    except Exception:  # noqa: BLE001 - what cannot be pickled raises anything
        return packed(number, (None, RuntimeError(f"{type(failure).__name__}: {failure}"[:1000])))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
