"""Hostile clients of exec sessions: `python -m integration.attacks NAME SECONDS URL...`.

Each URL is an exec of `COMMAND` with stdout and stderr. A thread for each URL attacks once the command runs, and reads
nothing back.

The word `sink` in place of a URL is a peer that discards all input, to measure the cost of the clients alone.
"""

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from integration.sessions import exec_client
from tests.streaming.spdy import wire
from tests.streaming.spdy.client import Deflater, counted, syn_stream

SINK = "sink"
_BEGUN = b"the command runs"
COMMAND = ("sh", "-c", f"echo {_BEGUN.decode()}; exec sleep 600")
"""The command of the attacked sessions."""
_KINDS = ("error", "stdout", "stderr")
_PIECE = 1 << 16


def _session_deflater() -> Deflater:
    """Return a compressor in the state after a client has opened the streams of an exec."""
    deflater = Deflater()
    for kind in _KINDS:
        deflater.deflate(counted({"streamtype": kind}.items()))
    return deflater


def _refused_streams() -> bytes:
    deflater = _session_deflater()
    headers = counted({"streamtype": "x"}.items())
    return b"".join(syn_stream(7 + 2 * at, deflater.deflate(headers)) for at in range(40_000))


def _header_bomb() -> bytes:
    deflater = _session_deflater()
    value = b"\0".join([b"ab"] * 1_300)
    return b"".join(wire.control(8, wire.words(1) + deflater.deflate(wire.block((b"aa", value)))) for _ in range(2_000))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "header blocks that inflate well": _header_bomb,
    "streams that are refused": _refused_streams,
    "pings": lambda: wire.ping(1) * 100_000,
    "tiny data": lambda: wire.data(3, b"x") * 100_000,
}


@contextmanager
def attacking(name: str, sockets: Sequence[socket.socket]) -> Iterator[None]:
    """Attack all `sockets` from threads while the block runs."""
    stop, data = threading.Event(), ATTACKS[name]()
    attackers = [threading.Thread(target=_attack, args=(each, data, stop)) for each in sockets]
    for attacker in attackers:
        attacker.start()
    try:
        yield
    finally:
        stop.set()
        for attacker in attackers:
            attacker.join()


def _attack(peer: socket.socket, data: bytes, stop: threading.Event) -> None:
    """Send as much as the peer takes; read nothing."""
    peer.settimeout(0.2)
    view = memoryview(data)
    while view and not stop.is_set():
        with suppress(TimeoutError):
            try:
                view = view[peer.send(view) :]
            except (BrokenPipeError, ConnectionResetError):
                return


def _connected(url: str) -> socket.socket:
    """Connect to a URL of the command line, or to a sink."""
    if url != SINK:
        client = exec_client(url)
        client.read_until(_BEGUN)
        return client.socket
    ours, theirs = socket.socketpair()
    threading.Thread(target=_read_all, args=(theirs,), daemon=True).start()
    return ours


def _read_all(peer: socket.socket) -> None:
    buffer = bytearray(_PIECE)
    while peer.recv_into(buffer):
        pass


def main() -> None:
    """Attack the URLs; prints a line when all commands run."""
    name, seconds, *urls = sys.argv[1:]
    sockets = [_connected(url) for url in urls]
    print("open", flush=True)
    with attacking(name, sockets):
        threading.Event().wait(float(seconds))


if __name__ == "__main__":
    main()
