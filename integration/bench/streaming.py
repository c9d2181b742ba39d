"""Speed of streaming, compared to the promised limits: `python -m integration.bench.streaming`, in isolation.

The client is minimal, so that the server is measured: it speaks just enough SPDY to open streams, ignores windows like
Go's client, and counts bytes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from integration.bench.setup import ENGINES, prepared, serving
from integration.cri import Cri, container_config, pod_config
from integration.node.commands import NodeError
from integration.node.images import BUSYBOX
from integration.server import Server
from integration.sessions import Client, exec_session
from shim.api.v1 import api_pb2 as pb
from shim.engine.client import DockerEngine

MIB = 1 << 20
PORT = 9000


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise, and the measured value."""

    what: str
    measured: float
    unit: str
    limit: float
    at_most: bool

    @property
    def held(self) -> bool:
        """Whether the promise is kept."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        word = "held" if self.held else "MISSED"
        return f"{self.what:<58} {self.measured:9.2f} {sign} {self.limit:g} {self.unit:<6} {word}"


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _exec_true(cri: Cri, engine: DockerEngine, container: str, *, rounds: int) -> Bar:
    def served() -> None:
        client = exec_session(cri, container, "true")
        client.drain()
        client.close()

    def floor() -> None:
        body = {"Cmd": ["true"], "AttachStdout": True, "AttachStderr": True}
        exec_id = engine.create_exec(container, body=body)
        with engine.start_exec(exec_id) as stream:
            list(stream.frames())
        engine.inspect_exec(exec_id)

    ours, docker = list[float](), list[float]()
    for number in range(rounds):
        # Docker still cleans up after an exec when the next exec starts, so each side follows the other and itself.
        order = ((floor, docker), (served, ours))
        for call, times in order if number % 2 else reversed(order):
            times.append(_seconds(call))
    ratio = statistics.median(ours) / statistics.median(docker)
    return Bar("exec of true, relative to Docker's API", ratio, "x", 1.25, at_most=True)


def _output_floor(engine: DockerEngine, container: str) -> float:
    """Return the rate at which Docker delivers output, in MB/s: the limit on a busy machine."""
    body = {"Cmd": ["head", "-c", str(256 * MIB), "/dev/zero"], "AttachStdout": True}
    with engine.start_exec(engine.create_exec(container, body=body)) as stream:
        began = time.perf_counter()
        count = 0
        while piece := stream.read():
            count += len(piece)
    return count / (time.perf_counter() - began) / 1e6


def _output(cri: Cri, server: Server, container: str) -> Bar:
    client = exec_session(cri, container, "head", "-c", str(1024 * MIB), "/dev/zero")
    began, used = time.perf_counter(), server.cpu_seconds()
    count = client.drain()
    rate = count / (time.perf_counter() - began) / 1e6
    client.close()
    print(f"Forwarding {count >> 20} MiB of output took {server.cpu_seconds() - used:.2f} s of the processor")
    return Bar(f"exec with {count >> 20} MiB of output", rate, "MB/s", 150, at_most=False)


def _port_forward(cri: Cri, sandbox: str) -> Bar:
    url = cri.runtime.PortForward(pb.PortForwardRequest(pod_sandbox_id=sandbox)).url
    pair = {"port": str(PORT), "requestid": "0"}
    client = Client(url, "portforward.k8s.io", *({"streamtype": kind, **pair} for kind in ("error", "data")))
    began = time.perf_counter()
    count = client.drain(1000 * MIB)
    rate = count / (time.perf_counter() - began) / 1e6
    client.close()
    return Bar(f"port-forward of {count >> 20} MiB in one connection", rate, "MB/s", 100, at_most=False)


def _idle(cri: Cri, server: Server, containers: tuple[str, ...], *, sessions: int) -> Bar:
    before = server.rss()
    with ExitStack() as open_ones:
        for number in range(sessions):  # spread, since a container's sessions are limited
            container = containers[number % len(containers)]
            open_ones.callback(exec_session(cri, container, "sleep", "600").close)
        time.sleep(2)
        grown = (server.rss() - before) / MIB
    return Bar(f"memory of {sessions} idle sessions", grown, "MiB", 20, at_most=True)


def _endless_server(cri: Cri, container: str) -> None:
    """Run a server in the pod that sends endlessly to each client."""
    script = f"nc -ll -p {PORT} -e sh -c 'exec cat /dev/zero' & sleep 0.5"
    cri.exec(container, "sh", "-c", f"({script}) >/dev/null 2>&1 </dev/null")


def measure(engine_name: str, *, rounds: int) -> list[Bar]:
    """Measure all bars. Raises NodeError if setup fails."""
    with prepared(engine_name) as setup, serving(setup) as (server, cri):
        direct = DockerEngine(setup.engine.url, request_timeout=60)
        config = pod_config("streaming")
        sandbox = cri.run(config)
        container = cri.create(sandbox, container_config("box", image=BUSYBOX), pod=config)
        cri.start(container)
        other = cri.create(sandbox, container_config("other", image=BUSYBOX), pod=config)
        cri.start(other)
        _endless_server(cri, container)
        bars = [
            _exec_true(cri, direct, container, rounds=rounds),
            _idle(cri, server, (container, other), sessions=100),
            _output(cri, server, container),
            _port_forward(cri, sandbox),
        ]
        print(f"Docker's own API gives {_output_floor(direct, container):.1f} MB/s of output on this machine now")
        direct.close()
        return bars


def print_bars(measured: Callable[[], Iterable[Bar]]) -> int:
    """Measure and print; the exit status says whether the measurement succeeded, not how good the figures are."""
    try:
        bars = measured()
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    print("\n".join(map(str, bars)))
    return 0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.streaming", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the short command (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, rounds=arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
