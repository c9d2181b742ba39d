"""Plugins of the NRI project and of containers/nri-plugins, in Go; none is in this repository."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.conftest import Served
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

TOGETHER = ("device-injector", "ulimit-adjuster", "logger")
"""Plugins that change only pods whose annotations ask for it."""
_FIRST_INDEX = 10
_OPTIONS = {
    "balloons": ("-nri-plugin-index", "-nri-socket"),
    "topology-aware": ("-nri-plugin-index", "-nri-socket"),
    "ulimit-adjuster": ("-idx", "-socket"),
}
"""The options for index and socket of programs that do not call them `-idx` and `-socket-path`."""
_STOP_SECONDS = 20.0
_STARTED = b"Started plugin"
"""The log line of the Go library after a plugin is registered and configured."""


def info_of(served: Served) -> dict[str, Any]:
    """Return the NRI part of the verbose Status."""
    answer = served.cri.runtime.Status(pb.StatusRequest(verbose=True))
    found: dict[str, Any] = json.loads(answer.info["config"])["nri"]
    return found


def plugins_of(served: Served) -> list[str]:
    """Return the index and name of each registered plugin."""
    return [row["name"] for row in info_of(served)["plugins"]]


@contextmanager
def running(served: Served, programs: Sequence[Path], *, log: Path, options: Sequence[str] = ()) -> Iterator[None]:
    """Run plugins inside the block, with the indices 10, 11 and so on, each with these further options."""
    with connected(programs, socket=served.server.nri_socket, log=log, options=options):
        wait_until(lambda: {f"{number}-{each.name}" for number, each in _numbered(programs)} <= set(plugins_of(served)))
        yield
    wait_until(lambda: not plugins_of(served))


@contextmanager
def connected(programs: Sequence[Path], *, socket: Path, log: Path, options: Sequence[str] = ()) -> Iterator[None]:
    """Run plugins of any runtime inside the block, which begins when all are configured. `log` is a new file."""
    children = []
    try:
        for number, program in _numbered(programs):
            index, path = _OPTIONS.get(program.name, ("-idx", "-socket-path"))
            with log.open("ab") as output:
                command = [str(program), index, str(number), path, str(socket), *options]
                children.append(subprocess.Popen(command, stdout=output, stderr=output))
            wait_until(lambda: log.read_bytes().count(_STARTED) == len(children))
        yield
    finally:
        for child in children:
            child.terminate()
            child.wait(_STOP_SECONDS)


def _numbered(programs: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    return enumerate(programs, start=_FIRST_INDEX)
