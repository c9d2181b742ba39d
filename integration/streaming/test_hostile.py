"""What ten hostile clients at once cost a server, and those who ask it something meanwhile."""

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Pod
from integration.sessions import Client, exec_session
from shim.api.v1 import api_pb2 as pb
from tests.streaming.spdy import wire
from tests.streaming.spdy.client import Deflater, counted, syn_stream

SESSIONS = 10
SECONDS = 4.0
"""For which they go on."""
MIB = 1 << 20
MOST = 200 * MIB
"""Resident memory of the server."""
SLOW = 1.0
"""Seconds of a call, in the median: far above what is promised, since test machines are busy."""


def _opening(headers: dict[str, str], *, count: int, first: int) -> bytes:
    """Open so many streams alike; the client of `integration.sessions` has a compressor of its own before."""
    deflater = Deflater()
    for number in range(3):  # as the client has opened its own
        deflater.deflate(counted({"streamtype": ("error", "stdout", "stderr")[number]}.items()))
    return b"".join(syn_stream(first + 2 * at, deflater.deflate(counted(headers.items()))) for at in range(count))


def _bomb() -> bytes:
    deflater = Deflater()
    for kind in ("error", "stdout", "stderr"):
        deflater.deflate(counted({"streamtype": kind}.items()))
    value = b"\0".join([b"ab"] * 1_300)
    return b"".join(wire.control(8, wire.words(1) + deflater.deflate(wire.block((b"aa", value)))) for _ in range(2_000))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "header blocks that inflate well": _bomb,
    "streams that are refused": lambda: _opening({"streamtype": "x"}, count=40_000, first=7),
    "pings": lambda: wire.ping(1) * 100_000,
    "tiny data": lambda: wire.data(3, b"x") * 100_000,
}


def _attack(client: Client, data: bytes, stop: threading.Event) -> None:
    """Send as much as the server takes, and read nothing."""
    client.socket.settimeout(0.2)
    view = memoryview(data)
    while view and not stop.is_set():
        with suppress(TimeoutError):
            try:
                view = view[client.socket.send(view) :]
            except (BrokenPipeError, ConnectionResetError):
                return
    stop.wait()


def _peak(served: Served) -> int:
    lines = Path(f"/proc/{served.server.daemon.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


@pytest.fixture
def container(served: Served, pod: Pod) -> str:
    """Give a container, and begin to count the server's largest size."""
    Path(f"/proc/{served.server.daemon.pid}/clear_refs").write_text("5")
    [found] = [each.id for each in served.cri.containers() if each.pod_sandbox_id == pod.id]
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_ten_at_once_take_neither_memory_nor_time(served: Served, container: str, name: str) -> None:
    stop, data = threading.Event(), ATTACKS[name]()
    clients = [exec_session(served.cri, container, "sleep", "60") for _ in range(SESSIONS)]
    attackers = [threading.Thread(target=_attack, args=(client, data, stop)) for client in clients]
    durations = []
    for attacker in attackers:
        attacker.start()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        began = time.monotonic()
        served.cri.runtime.Version(pb.VersionRequest())
        durations.append(time.monotonic() - began)
    stop.set()
    for attacker in attackers:
        attacker.join()
    peak = _peak(served)
    for client in clients:
        client.close()
    median, worst = statistics.median(durations) * 1000, max(durations) * 1000
    print(
        f"{name}: server at most {peak / MIB:.0f} MiB, {len(durations)} calls, median {median:.1f}, max {worst:.0f} ms"
    )

    assert peak < MOST
    assert median < SLOW * 1000
