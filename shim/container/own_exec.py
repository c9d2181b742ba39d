"""Runs a command by the server's own exec (`shim.own_exec`), in a container of the view."""

from contextlib import AbstractContextManager

from shim.domain.errors import NotFound
from shim.own_exec.own_exec import Command, Request
from shim.runtime import Runtime
from shim.view.records import ContainerRecord


def run_by_own_exec(rt: Runtime, record: ContainerRecord, request: Request) -> AbstractContextManager[Command | None]:
    """Run a command for the block; yield None if Docker has to run it."""
    try:
        exec_root = rt.view.sandbox(record.sandbox_id).exec_root
    except NotFound:
        exec_root = ""
    return rt.own_exec.begun(record.id, request, exec_root=exec_root, pid=record.state.pid)
