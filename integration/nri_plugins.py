"""Plugins of the NRI project, in Go, built as upstream builds them; none is in this repository."""

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
_STOP_SECONDS = 20.0


def info_of(served: Served) -> dict[str, Any]:
    """Return the NRI part of the verbose Status."""
    answer = served.cri.runtime.Status(pb.StatusRequest(verbose=True))
    found: dict[str, Any] = json.loads(answer.info["config"])["nri"]
    return found


def plugins_of(served: Served) -> list[str]:
    """Return the index and name of each registered plugin."""
    return [row["name"] for row in info_of(served)["plugins"]]


@contextmanager
def running(served: Served, programs: Sequence[Path], *, log: Path) -> Iterator[None]:
    """Run plugins inside the block, with the indices 10, 11 and so on."""
    children = []
    try:
        for number, program in enumerate(programs, start=_FIRST_INDEX):
            option = "-socket" if program.name == "ulimit-adjuster" else "-socket-path"
            command = [str(program), "-idx", str(number), option, str(served.server.nri_socket)]
            with log.open("ab") as output:
                children.append(subprocess.Popen(command, stdout=output, stderr=output))
            _wait_registered(served, f"{number}-{program.name}")
        yield
    finally:
        for child in children:
            child.terminate()
            child.wait(_STOP_SECONDS)
    wait_until(lambda: not plugins_of(served))


def _wait_registered(served: Served, plugin: str) -> None:
    wait_until(lambda: plugin in plugins_of(served))
