"""The program `python worker.py`: carries out one order (`shim.criu.order`) from standard input.

criu must not be killed during a dump: the container's processes would stay frozen, with criu's code in them and without
network. So the program works in a child process in its own session, which survives a kill of its parent, of the process
group and of the server.

The end of standard input cancels the order. It also comes when the server ends. The program then makes criu fail, which
lets criu clean up; resumes the containers; and removes all files.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

# Python runs isolated from all packages (-IS). The program needs only the package `shim`, which holds this file.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shim.criu import order as answers
from shim.criu.archive import Refused, TooLarge
from shim.criu.container_archive import checkpoint_container
from shim.criu.dump import Failure, Paused, kind_of
from shim.criu.order import Answer, ContainerOrder, Order, PodOrder, TakeOrder, TrialOrder, decoded
from shim.criu.pod_directory import checkpoint_pod, empty, opened_output
from shim.criu.take import take
from shim.criu.trial import try_dump

_TEXT_LENGTH = 2000


def main() -> int:
    """Read the order, carry it out and print the answer."""
    order = decoded(_line())
    worker = os.fork()
    if worker:
        _, status = os.waitpid(worker, 0)
        if status:
            _undo(order)
        return os.waitstatus_to_exitcode(status)
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    answer = _answer(order)
    with suppress(OSError):  # the server has closed the pipe
        os.write(sys.stdout.fileno(), answer.encoded())
    return 0


def _undo(order: Order) -> None:
    """Resume the containers and remove the files after the child process has crashed, for example out of memory."""
    if isinstance(order, TakeOrder):
        shutil.rmtree(order.target, ignore_errors=True)
        return
    for source in () if isinstance(order, TrialOrder) else order.sources:
        with suppress(Failure, OSError, subprocess.TimeoutExpired):
            Paused(source, {"PATH": order.path, "HOME": "/"}).resume()
    # The work directory exists only if the output directory was found empty, so all its files are ours.
    if isinstance(order, PodOrder) and Path(order.work).is_dir():
        with suppress(Failure, OSError), opened_output(order.directory) as directory:
            empty(directory)
    shutil.rmtree(order.work, ignore_errors=True)


def _line() -> bytes:
    """Read the first line of standard input; exit if it is incomplete."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            raise SystemExit("there is no order")
        line += piece
    return line


def _answer(order: Order) -> Answer:
    try:
        match order:
            case ContainerOrder():
                checkpoint_container(order)
            case PodOrder():
                checkpoint_pod(order)
            case TakeOrder():
                take(order)
            case TrialOrder():
                try_dump(order)
    except Failure as failure:
        return Answer(failure.kind, str(failure)[:_TEXT_LENGTH])
    except Refused as refused:
        kind = answers.NO_SPACE if isinstance(refused, TooLarge) else answers.NOT_POSSIBLE
        return Answer(kind, str(refused)[:_TEXT_LENGTH])
    except subprocess.TimeoutExpired as late:
        return Answer(answers.NOT_POSSIBLE, f"{late.cmd[0]} does not end")
    except OSError as error:
        return Answer(kind_of(error), str(error)[:_TEXT_LENGTH])
    return Answer()


if __name__ == "__main__":
    sys.exit(main())
