"""Runs commands of the machine, and prints progress."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_HEARTBEAT_SECONDS = 10.0
_TAIL_LINES = 15
_SLOWNESS = float(os.environ.get("PYDOCKERSHIM_SLOWNESS", "1"))
"""Factor by which timeouts are extended on emulated machines."""


class NodeError(RuntimeError):
    """The node cannot be set up; the message names the failed step and its output."""


def allowed(seconds: float) -> float:
    """Return a timeout extended for this machine."""
    return seconds * _SLOWNESS


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    `timeout` is in seconds and extended by `allowed`; `env` is added to this process's environment. Raises NodeError
    with the end of the output if the command is missing, too slow or fails.
    """
    words = " ".join(os.fspath(word) for word in argv)
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=allowed(timeout),
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
    except FileNotFoundError as cause:
        raise NodeError(f"run {words}: no such program") from cause
    except subprocess.TimeoutExpired as cause:
        raise NodeError(f"run {words}: no end within {allowed(timeout):g} s") from cause
    if done.returncode != 0:
        raise NodeError(f"run {words}: exit status {done.returncode}\n{tail(done.stdout + done.stderr)}")
    return done.stdout


def run_foreground(argv: Sequence[str]) -> int:
    """Run a command in the foreground to its end, and return its exit status.

    Ctrl-C reaches it from the terminal, and SIGTERM is forwarded. In both cases the command decides how to end, and the
    caller cleans up afterwards.
    """
    child = subprocess.Popen(argv)
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    return exit_status(child.wait())


def exit_status(code: int) -> int:
    """Convert Python's code of an ended program to a shell's: 128 plus the number of a signal."""
    return code if code >= 0 else 128 - code


def tail(text: str) -> str:
    """Return the last lines of an output, enough to see why a program failed."""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step and its duration, and its progress every ten seconds."""
    started = time.monotonic()
    over = threading.Event()

    def report_progress() -> None:
        while not over.wait(_HEARTBEAT_SECONDS):
            print(f"    ... {title} ({time.monotonic() - started:.0f} s)", flush=True)

    print(f"  - {title}", flush=True)
    ticker = threading.Thread(target=report_progress, name="progress", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
        print(f"    {time.monotonic() - started:6.1f} s", flush=True)
