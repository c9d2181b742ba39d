"""A program that carries out one order (`shim.criu.order`): `python worker.py`. The order comes on standard input.

It works in a process that no kill of its parent, its group or the server ends: criu must not be killed while it holds a
container, whose processes would be left with criu's code in them, frozen, and without their network. So the end of
standard input, which comes with the end of the server too, is the sign to give up: criu then fails by its own means,
the containers go on, and all files are removed.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

# Python is isolated from all packages (-IS). The program needs the package `shim` alone, which holds this file.
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
    with suppress(OSError):  # nobody reads it any more
        os.write(sys.stdout.fileno(), answer.encoded())
    return 0


def _undo(order: Order) -> None:
    """Have containers go on after a crash of the process that had them paused, for example for lack of memory."""
    if isinstance(order, TakeOrder):
        shutil.rmtree(order.target, ignore_errors=True)
        return
    for source in () if isinstance(order, TrialOrder) else order.sources:
        with suppress(Failure, OSError, subprocess.TimeoutExpired):
            Paused(source, {"PATH": order.path, "HOME": "/"}).resume()
    # Only a directory that was found empty is emptied: the work begins after that check.
    if isinstance(order, PodOrder) and Path(order.work).is_dir():
        with suppress(Failure, OSError), opened_output(order.directory) as directory:
            empty(directory)
    shutil.rmtree(order.work, ignore_errors=True)


def _line() -> bytes:
    """Read one line and nothing after it."""
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
