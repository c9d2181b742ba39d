"""Carries out a TrialOrder: dumps an idle process. `criu check` also passes on kernels where criu cannot dump."""

import shutil
import subprocess
from pathlib import Path

from shim.criu import order as answers
from shim.criu.dump import Failure, find_criu
from shim.criu.order import TrialOrder
from shim.oci_runtime.restore import criu_errors

_DUMP_SECONDS = 30.0
"""Timeout of the dump, which takes 0.1 s."""
_IDLE = ("sleep", "60")


def try_dump(order: TrialOrder) -> None:
    """Dump an idle process. Raise Failure with criu's errors, OSError or TimeoutExpired."""
    work = Path(order.work)
    try:
        work.mkdir(mode=0o700, parents=True)
        _dump(find_criu(order.path), path=order.path, work=work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _dump(criu: str, *, path: str, work: Path) -> None:
    nothing, environment = subprocess.DEVNULL, {"PATH": path, "HOME": "/"}
    with subprocess.Popen(
        _IDLE, env=environment, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    ) as idle:
        try:
            tried = subprocess.run(
                [criu, "dump", "--leave-running", "--tree", str(idle.pid), "--images-dir", str(work), "-o", "dump.log"],
                check=False,
                env=environment,
                stdin=nothing,
                capture_output=True,
                timeout=_DUMP_SECONDS,
            )
        finally:
            idle.kill()
    if tried.returncode:
        said = criu_errors(str(work / "dump.log")) or f"criu dump ended with {tried.returncode}"
        raise Failure(answers.NO_CRIU, f"a process cannot be dumped: {said}")
