"""Lines lost when a container prints as fast as Docker accepts, by the size of Docker's log copy.

`python -m integration.node run --disk python -m integration.bench.log_losses`. Busy processes run at the same time,
because the loss depends on how seldom the log process runs.
"""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from integration.bench.logs import Pod
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.cri import Cri
from integration.node.commands import NodeError
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.config.model import DockerLogDriver

_COPIES = ("512k twice", "1m twice", "4m twice", "16m twice")
_FILES = 2
_ANY_COPY = (
    "from shim.config import combinations as c; c.MIN_LOG_COPY = 0; from shim import cli; raise SystemExit(cli.main())"
)
"""The server without its lower bound on the size of that copy."""
_FLOOD = "yes {line} | head -n {lines}"
_LINE = "x" * 99
_END_SECONDS = 300.0


def losses(setup: Setup, *, copy: str, driver: DockerLogDriver, lines: int, runs: int, checkout: Path) -> list[float]:
    """Return the share of lines that each run lost, in percent."""
    size = copy.partition(" ")[0]
    flags = {"docker_log_max_size": size, "docker_log_max_file": _FILES, "docker_log_driver": driver}
    program = (sys.executable, "-P", "-c", _ANY_COPY)
    with serving(setup, checkout=checkout, program=program, **flags) as (_, cri):
        pod = Pod(cri, setup.logs)
        lost = []
        for number in range(runs):
            container_id, path = pod.start(f"flood-{number}", _FLOOD.format(line=_LINE, lines=lines))
            _wait_exited(cri, container_id)
            with path.open("rb") as log:
                lost.append(100 - 100 * sum(1 for _ in log) / lines)
            cri.remove_container(container_id)
            path.unlink()
        pod.remove()
        return lost


def _wait_exited(cri: Cri, container_id: str) -> None:
    exited = pb.CONTAINER_EXITED
    wait_until(lambda: cri.container_status(container_id).state == exited, _END_SECONDS)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the processors busy with `processes` processes."""
    started = [subprocess.Popen((sys.executable, "-c", "while True: pass")) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def row(copy: str, lost: Sequence[float]) -> str:
    """Return a row of the table: how many runs lost lines, and how many lines."""
    some = [share for share in lost if share > 0]
    found = (
        f"{min(some):.1f} to {max(some):.1f} % in {len(some)} of {len(lost)} runs"
        if some
        else f"none in {len(lost)} runs"
    )
    return f"| {copy} | {found} |"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.log_losses", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1])
    parser.add_argument(
        "--driver", choices=get_args(DockerLogDriver), default="json-file", help="Docker's logging driver"
    )
    parser.add_argument("--copy", choices=_COPIES, action="append", help="size and number of Docker's log files (all)")
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines of 100 bytes (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each (%(default)s)")
    parser.add_argument("--busy", type=int, default=8, help="number of busy processes (%(default)s)")
    parser.add_argument("--checkout", type=Path, default=Path(), help="checkout of the server (this one)")
    given = parser.parse_args()
    try:
        with prepared(given.engine) as setup, busy(given.busy):
            print(f"| Docker keeps | {setup.engine.version}, {given.driver}, {given.busy} busy processes |\n|---|---|")
            for copy in given.copy or _COPIES:
                lost = losses(
                    setup,
                    copy=copy,
                    driver=given.driver,
                    lines=given.lines,
                    runs=given.runs,
                    checkout=given.checkout.absolute(),
                )
                print(row(copy, lost), flush=True)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
