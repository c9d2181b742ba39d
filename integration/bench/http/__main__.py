"""Measure the processor time that h11 would add to calls to Docker. Needs neither root nor an Engine.

Both readers get the same bytes without a socket. For comparison the table shows the processor time of a whole call in
the calling thread, kernel included, and of one call through the SDK.
"""

import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker

from integration.bench.http import responses
from integration.bench.http.readers import H11Reader, OwnReader
from integration.bench.http.responses import Exchange
from integration.bench.http.server import serving
from shim.engine.client import DockerEngine

ROUNDS = 15
"""Rounds; the median counts, since other work may disturb some of them."""
ROUND_SECONDS = 0.05

Pieces = Callable[[Exchange], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of call. Its times are divided by `units`."""

    name: str
    exchanges: tuple[Exchange, ...]
    call: Callable[[DockerEngine], object]
    units: int = 1


def _exec(engine: DockerEngine) -> None:
    engine.create_exec(responses.CID, body={"AttachStdout": True, "AttachStderr": True, "Cmd": ["cat", "/proc/uptime"]})
    with engine.start_exec(responses.EXEC_ID) as stream:
        list(stream.frames())
    engine.inspect_exec(responses.EXEC_ID)


def _events(engine: DockerEngine) -> None:
    with engine.events(since=1) as events:
        for _ in range(responses.EVENTS):
            next(events)


def _archive(engine: DockerEngine) -> int:
    with engine.archive(responses.CID, "/") as pieces:
        return sum(map(len, pieces))


CASES = (
    Case("inspect of a container", (responses.inspect(),), lambda engine: engine.inspect_container(responses.CID)),
    Case(f"list of {responses.ROWS} containers", (responses.containers(),), lambda engine: engine.list_containers()),
    Case("start", (responses.start(),), lambda engine: engine.start_container(responses.CID)),
    Case("exec: create, start, inspect", responses.exec_calls(), _exec),
    Case("event", (responses.events(),), _events, units=responses.EVENTS),
    Case("MiB of an archive", (responses.archive(),), _archive, units=responses.ARCHIVE_MIB),
)


def main() -> int:
    """Measure, and print the table."""
    exchanges = [responses.version(), *(exchange for case in CASES for exchange in case.exchanges)]
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory) / "docker.sock", exchanges) as endpoint:
        engine = DockerEngine(endpoint, request_timeout=60)
        print(f"{'microseconds of the processor':30}{'own':>8}{'h11':>8}{'call':>8}{'h11 adds':>10}")
        for case in CASES:
            own, h11 = _reading(case, OwnReader().pieces), _reading(case, H11Reader().pieces)
            call = _microseconds(lambda case=case: case.call(engine)) / case.units  # type: ignore[misc]
            print(f"{case.name:30}{own:8.1f}{h11:8.1f}{call:8.1f}{(h11 - own) / call:10.0%}")
        engine.close()
        sdk = docker.APIClient(base_url=endpoint, version="1.51", timeout=60)
        took = _microseconds(lambda: sdk.inspect_container(responses.CID))
        print(f"{'inspect by docker.APIClient':30}{'':16}{took:8.1f}")
        sdk.close()
    return 0


def _reading(case: Case, pieces: Pieces) -> float:
    def read() -> None:
        for exchange in case.exchanges:
            deque(pieces(exchange), maxlen=0)

    return _microseconds(read) / case.units


def _microseconds(work: Callable[[], object]) -> float:
    """Return the median processor time of `work`, in microseconds."""
    work()
    return statistics.median(_round(work) for _ in range(ROUNDS))


def _round(work: Callable[[], object]) -> float:
    count, began = 0, time.thread_time()
    while (took := time.thread_time() - began) < ROUND_SECONDS:
        work()
        count += 1
    return took / count * 1e6


if __name__ == "__main__":
    sys.exit(main())
