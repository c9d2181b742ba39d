"""Commands that the exec program runs on this machine, outside containers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shim.base.proc import value_of
from shim.own_exec.client import ExecProgram, Running
from shim.own_exec.command import Streams
from shim.own_exec.own_exec import on_host
from shim.own_exec.plan import Plan


def plan(*command: str, **fields: Any) -> Plan:
    """Return the plan for a command with the environment's PATH."""
    environment = [(b"PATH", os.fsencode(os.environ["PATH"])), (b"HOME", b"/")]
    capabilities = int(value_of(Path("/proc/self/status").read_bytes(), b"CapPrm"), 16)
    return on_host(command, capabilities=capabilities)._replace(**({"environment": environment} | fields))


@contextmanager
def running(
    program: ExecProgram, *command: str, stdin: bool = False, tty: bool = False, **fields: Any
) -> Iterator[tuple[Running, Streams]]:
    """Run a command inside the block, once it has begun."""
    streams = Streams(stdin=stdin, tty=tty)
    try:
        terminal = {"terminal": (80, 24)} if tty else {}
        found = program.run(plan(*command, **(terminal | fields)), streams.theirs)
        try:
            found.wait_begun()
            streams.begin(found, what="the command of a test")
            yield found, streams
        finally:
            program.forget(found)
    finally:
        streams.release()


def output_of(streams: Streams) -> dict[int, bytes]:
    """Return all output by stream."""
    output = {1: b"", 2: b""}
    for number, piece in streams.frames():
        output[number] += piece
    return output
