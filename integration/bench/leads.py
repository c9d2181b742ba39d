"""Times of Docker alone for starting pause and a container, with and without work that could be left out.

`python -m integration.node run --disk python -m integration.bench.leads --rounds 40`, or `make bench-leads`.
"""

import argparse
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from integration.bench.floor import DirectDocker
from integration.bench.setup import ENGINES, Setup, prepared, second_engine
from integration.bench.timings import Timings
from integration.node.commands import NodeError
from shim.dockerd.runc import SHIM_GROUP
from shim.domain.ids import ImageId
from shim.spec.pause_seccomp import PROFILE

_CALLS = ("create pause", "start pause", "create container", "start container")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """How the request bodies differ from Docker's defaults."""

    pause: dict[str, Any] = field(default_factory=dict)
    pause_host: dict[str, Any] = field(default_factory=dict)
    one_shim: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    """Variables of dockerd's environment, which all its child processes inherit."""


LEADS = {
    "default": Lead(),
    "one shim": Lead(one_shim=True),
    "profile of pause": Lead(pause_host={"SecurityOpt": ["no-new-privileges", f"seccomp={PROFILE}"]}),
    "pause without profile": Lead(pause_host={"SecurityOpt": ["seccomp=unconfined"]}),
    "pause without network": Lead(pause={"NetworkDisabled": True}),
    "pause without log": Lead(pause_host={"LogConfig": {"Type": "none"}}),
    "all of them": Lead(one_shim=True, pause={"NetworkDisabled": True}, pause_host={"LogConfig": {"Type": "none"}}),
    "dockerd with GOGC=400": Lead(environ={"GOGC": "400"}),
}


def main() -> int:
    """Measure on an engine and print medians."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.leads", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each variant (%(default)s)")
    arguments = parser.parse_args()
    try:
        with prepared(arguments.engine) as setup, ExitStack() as stack:
            clients = {name: _client(setup, lead.environ, stack) for name, lead in LEADS.items()}
            _print(_measure(clients, pause=setup.pause, image=setup.busybox, rounds=arguments.rounds))
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    return 0


def _client(setup: Setup, environ: dict[str, str], stack: ExitStack) -> DirectDocker:
    """Return a client of the engine, or of a second engine if dockerd needs further variables."""
    engine = stack.enter_context(second_engine(setup, environ=environ)) if environ else setup.engine
    docker = DirectDocker(engine.socket, version=engine.api.api_version)
    stack.callback(docker.close)
    return docker


def _measure(clients: dict[str, DirectDocker], *, pause: ImageId, image: ImageId, rounds: int) -> dict[str, Timings]:
    """Run each variant in turn, `rounds` times; the order is reversed from round to round."""
    found = {name: Timings() for name in LEADS}
    for number in range(-1, rounds):  # the first is not counted: it fills caches
        for name in list(LEADS)[:: 1 if number % 2 else -1]:
            timings = found[name] if number >= 0 else Timings()
            _start(clients[name], timings, LEADS[name], pause=pause, image=image, group=f"{name}-{number}")
    return found


def _start(docker: DirectDocker, timings: Timings, lead: Lead, *, pause: ImageId, image: ImageId, group: str) -> None:
    shared = {"Annotations": {SHIM_GROUP: group}} if lead.one_shim else {}
    host = {"NetworkMode": "none", "IpcMode": "shareable", **shared, **lead.pause_host}
    body = {"Image": pause, **lead.pause, "HostConfig": host}
    sandbox = timings.call("create pause", lambda: docker.create("lead-pause", body))
    timings.call("start pause", lambda: docker.post(f"/containers/{sandbox}/start"))
    joined = {"NetworkMode": f"container:{sandbox}", "IpcMode": f"container:{sandbox}"}
    body = {"Image": image, "Cmd": ["sleep", "3600"], "HostConfig": {**joined, **shared}}
    container = timings.call("create container", lambda: docker.create("lead-main", body))
    timings.call("start container", lambda: docker.post(f"/containers/{container}/start"))
    for each in (container, sandbox):
        docker.delete(f"/containers/{each}?v=1&force=1")


def _print(found: dict[str, Timings]) -> None:
    whole = {name: _sum(timings) for name, timings in found.items()}
    print(f"{'medians, ms':24}" + "".join(f"{call:>18}" for call in _CALLS) + f"{'sum':>10}{'ratio':>8}")
    for name, timings in found.items():
        calls = "".join(f"{statistics.median(timings.took[call]):18.1f}" for call in _CALLS)
        print(f"{name:24}{calls}{whole[name]:10.1f}{whole[name] / whole['default']:8.2f}")


def _sum(timings: Timings) -> float:
    sums: list[float] = [sum(calls) for calls in zip(*(timings.took[call] for call in _CALLS), strict=True)]
    return statistics.median(sums)


if __name__ == "__main__":
    sys.exit(main())
