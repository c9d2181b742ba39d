"""Exec without Docker: runs a command in the exec program, or reports that Docker must run it."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

import shim.own_exec
from shim.base import deadline, meter
from shim.base.lru_cache import LruCache
from shim.base.proc import value_of
from shim.domain.errors import ResourceExhausted, ShimError, Unavailable, reason_of
from shim.own_exec import kernel
from shim.own_exec.client import ExecProgram, NotBegun, Running
from shim.own_exec.command import STDERR, STDOUT, Streams
from shim.own_exec.container import Container, Unsuited, check_same_rights, has_apparmor, namespaces_of, read_container
from shim.own_exec.filters import Filter, Filters
from shim.own_exec.plan import Plan

KNOWN_CONTAINERS = 2000
"""Maximum containers whose attributes are cached."""

KILL_SECONDS = 1.0
"""Limit for a killed command to end, which takes no time unless the command hangs in the kernel."""
FILTER_SECONDS = 30.0
"""Limit for compiling a filter with runc, which takes about 0.1 s."""
START_SECONDS = 30.0
"""Limit for the start of a command, whose program may be on a slow volume."""

_PRINTED_BYTES = 1 << 20
"""Maximum bytes of a printed filter; the kernel accepts 32 KiB."""
_READ_FILTER = Path(shim.own_exec.__file__).with_name("read_filter.py")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command of a CRI request."""

    cmd: Sequence[str]
    stdin: bool = False
    tty: bool = False
    size: tuple[int, int] | None = None
    """Width and height of the terminal, if they are known at the start."""


@dataclass(slots=True)
class _Refusals:
    """Commands that were left to Docker for the same reason."""

    count: int = 0
    text: str = ""


class Command:
    """A running command."""

    def __init__(self, running: Running, streams: Streams, *, what: str) -> None:
        self.streams = streams
        self._running = running
        self._what = what

    def wait(self) -> int:
        """Wait for the end and return the exit code; 128 + n if signal n ended the command.

        Raise ShimError if the exit code is unknown, Cancelled or DeadlineExceeded.
        """
        status = self._running.wait_ended(what=f"wait for the end of {self._what}")
        assert status is not None  # noqa: S101 - the wait has no limit
        return _exit_code(status)

    def end(self) -> int | None:
        """Kill the command and its process group, and wait for its end, also after the end of the current scope.

        Wait at most KILL_SECONDS. Return the exit code if the command had already ended, else None.
        """
        if self._running.status is not None:
            return _exit_code(self._running.status)
        self._running.kill()
        with suppress(ShimError), deadline.shielded(KILL_SECONDS):
            self._running.wait_ended(what=self._what, seconds=KILL_SECONDS)
        return None


@dataclass(frozen=True, slots=True)
class _Known:
    """A container, and the plan for its commands."""

    container: Container
    plan: Plan
    """The plan for a command without a terminal and without arguments."""
    program: bytes
    """The status of the exec program when the container was read."""


class OwnExec:
    """Runs commands in containers with the exec program. Thread-safe."""

    def __init__(self, *, is_wanted: bool) -> None:
        """Leave all commands to Docker unless `is_wanted`."""
        self._is_wanted = is_wanted
        self._program = ExecProgram()
        self._containers: LruCache[str, _Known] = LruCache(capacity=KNOWN_CONTAINERS)
        self._filters = Filters(self._compile)
        self._lock = threading.Lock()
        self._run = 0
        self._refused: dict[str, _Refusals] = {}
        """Commands that were left to Docker, by reason."""

    def stop(self) -> None:
        """End the program and its commands."""
        self._program.stop()

    @contextmanager
    def begun(self, container_id: str, request: Request, *, exec_root: str, pid: int) -> Iterator[Command | None]:
        """Run a command inside the block, in a running container whose first process is `pid`.

        Yield None if Docker must run the command; no part of it has run then. If the command still runs at the end of
        the block, kill it. Raise Cancelled, DeadlineExceeded, or ResourceExhausted if no descriptor is free.
        """
        began = time.monotonic()
        try:
            known = self._known(container_id, exec_root=exec_root, pid=pid)
            plan = _plan(known, request)
        except Unsuited as unsuited:
            self._refuse(container_id, unsuited)
            yield None
            return
        try:
            streams = Streams(stdin=request.stdin, tty=request.tty)
        except OSError as error:
            raise ResourceExhausted(f"exec in container {container_id}: {reason_of(error)}") from error
        try:
            try:
                running = self._start(known.container, plan, streams)
            except Unsuited as unsuited:
                self._refuse(container_id, unsuited)
                yield None
                return
            try:
                with self._lock:
                    self._run += 1
                meter.report(meter.Kind.EXEC, "own", "", seconds=time.monotonic() - began)
                yield Command(running, streams, what=f"exec of {request.cmd[0]} in container {container_id}")
            finally:
                self._program.forget(running)
        finally:
            streams.release()

    def state(self) -> dict[str, object]:
        """Return how many commands have run, and how many were left to Docker by reason, with the latest text."""
        with self._lock:
            refused = {reason: {"count": each.count, "latest": each.text} for reason, each in self._refused.items()}
            return {"run": self._run, "leftToDocker": refused}

    def _refuse(self, container_id: str, unsuited: Unsuited) -> None:
        with self._lock:
            refused = self._refused.setdefault(unsuited.reason, _Refusals())
            refused.count += 1
            refused.text = str(unsuited)
        meter.report(meter.Kind.EXEC, "docker", unsuited.reason, seconds=0.0)
        if self._is_wanted:
            log.debug("leaving exec to Docker", container=container_id, reason=unsuited.reason, error=unsuited)

    def _known(self, container_id: str, *, exec_root: str, pid: int) -> _Known:
        if not self._is_wanted:
            raise Unsuited("setting", "the setting own_exec is false")
        if not kernel.KNOWN_MACHINE:
            raise Unsuited("machine", f"the processor is {kernel.MACHINE}")
        try:
            program = self._program.status()
        except Unavailable as error:
            raise Unsuited("program", str(error)) from error
        known = self._containers.get(container_id)
        if known is None or known.container.pid != pid or known.program is not program:
            container = read_container(container_id, exec_root=Path(exec_root), pid=pid)
            check_same_rights(container, program=program)
            known = _Known(container, _base_plan(container, self._filters.of(container)), program)
            self._containers.put(container_id, known, weight=1)
        if known.container.is_frozen():
            raise Unsuited("paused", "the container is paused")
        return known

    def _start(self, container: Container, plan: Plan, streams: Streams) -> Running:
        """Start a command. Raise Unsuited if no part of it has run."""
        opened: list[int] = []
        try:
            kinds = []
            for path, kind in namespaces_of(
                container.pid, has_user_namespace=container.user_namespace_base is not None
            ):
                opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                kinds.append(kind)
            for group in container.control_groups:
                opened.append(os.open(group, os.O_WRONLY | os.O_CLOEXEC))  # noqa: PERF401 - `finally` closes each descriptor
            if not container.is_alive():  # the opened files may belong to another process with this pid
                raise Unsuited("ended", "the container has ended")
            plan = plan._replace(namespaces=kinds)
            running = self._program.run(plan, [*streams.theirs, *opened])
        except OSError as error:
            raise Unsuited("join", f"open the namespaces and control groups: {reason_of(error)}") from error
        except Unavailable as error:
            raise Unsuited("program", str(error)) from error
        finally:
            for descriptor in opened:
                os.close(descriptor)
        try:
            with deadline.bound(START_SECONDS):
                running.wait_begun()
            streams.begin(running, what=f"exec in container {container.id}")
        except NotBegun as failure:
            self._program.forget(running)
            raise Unsuited("join", str(failure)) from failure
        except BaseException:
            self._program.forget(running)
            raise
        return running

    @contextmanager
    def host_program(self, command: Sequence[str], *, what: str) -> Iterator[Command]:
        """Run a program on the host inside the block, with the rights of the exec program.

        The exec program starts it, because the server itself may be confined. If it still runs at the end of the block,
        kill it. Raise Unavailable without an exec program, ShimError if the program cannot start, OSError if no
        descriptor is free.
        """
        plan = on_host(command, capabilities=int(value_of(self._program.status(), b"CapPrm"), 16))
        streams = Streams(stdin=True, tty=False)
        try:
            running = self._program.run(plan, streams.theirs)
            try:
                running.wait_begun()
                streams.begin(running, what=what)
                yield Command(running, streams, what=what)
            except NotBegun as failure:
                raise ShimError(f"{what}: {failure}") from failure
            finally:
                self._program.forget(running)
        finally:
            streams.release()

    def _compile(self, profile: bytes, runc: Path, directory: Path) -> bytes:
        """Run `read_filter` and return its output."""
        command = [sys.executable, "-IS", str(_READ_FILTER), str(runc), str(directory)]
        with deadline.bound(FILTER_SECONDS), self.host_program(command, what="read a seccomp filter of runc") as found:
            return _printed(found, profile)


def _printed(command: Command, given: bytes) -> bytes:
    command.streams.write(given)
    command.streams.close_stdin()
    output = command.streams.output(most=_PRINTED_BYTES)
    code = command.wait()
    if code:
        last = output[STDERR].decode(errors="replace").strip().rpartition("\n")[2]
        raise Unsuited("seccomp", f"read the filter: exit code {code}: {last}")
    return output[STDOUT]


def on_host(command: Sequence[str], *, capabilities: int) -> Plan:
    """Return the plan for a program of the server on the host. `capabilities` are the exec program's."""
    return Plan(
        arguments=[os.fsencode(each) for each in command],
        environment=[(b"HOME", b"/")],
        directory=b"/",
        uid=0,
        gid=0,
        groups=[],
        bounding=capabilities,
        effective=capabilities,
        permitted=capabilities,
        inheritable=0,
        ambient=0,
        no_new_privileges=False,
        filter=b"",
        filter_flags=0,
        limits={},
        oom_score_adjustment=None,
        umask=0o077,
        niceness=0,
        processors=sorted(os.sched_getaffinity(0)),
        io_priority=0,
        apparmor=b"",
        keyring=b"",
        pipe_owner=(-1, -1),
        terminal=None,
        namespaces=[],
    )


def _base_plan(container: Container, filter_: Filter) -> Plan:
    process, base = container.process, container.user_namespace_base
    uid = process.user.uid
    return Plan(
        arguments=[],
        environment=[_pair(each) for each in process.env or ()],
        directory=os.fsencode(process.cwd or "/"),
        uid=uid,
        gid=process.user.gid,
        groups=process.user.additional_gids or [],
        bounding=container.capabilities("bounding"),
        effective=container.capabilities("effective"),
        permitted=container.capabilities("permitted"),
        inheritable=container.capabilities("inheritable"),
        ambient=container.capabilities("ambient"),
        no_new_privileges=process.no_new_privileges,
        filter=filter_.instructions,
        filter_flags=filter_.flags,
        limits=dict(container.limits),
        oom_score_adjustment=process.oom_score_adj,
        umask=container.umask,
        niceness=container.niceness,
        processors=sorted(container.processors),
        io_priority=container.io_priority,
        apparmor=os.fsencode(process.apparmor_profile) if has_apparmor() else b"",
        keyring=b"_ses." + container.id.encode(),
        pipe_owner=(uid, -1) if base is None else (base[0] + uid, base[1]),
        terminal=None,
        namespaces=[],
    )


def _plan(known: _Known, request: Request) -> Plan:
    plan = known.plan._replace(arguments=[os.fsencode(each) for each in request.cmd])
    if request.tty:
        return plan._replace(terminal=request.size or (0, 0), environment=_with_terminal(plan.environment))
    if known.container.has_terminal:
        raise Unsuited("terminal", "the environment has TERM, which Docker added for the terminal")
    return plan


def _with_terminal(environment: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return an environment with TERM, at Docker's position for it."""
    names = [name for name, _ in environment]
    if b"TERM" in names:
        return list(environment)
    place = names.index(b"HOSTNAME") + 1 if b"HOSTNAME" in names else 0
    return [*environment[:place], (b"TERM", b"xterm"), *environment[place:]]


def _pair(line: str) -> tuple[bytes, bytes]:
    name, _, value = os.fsencode(line).partition(b"=")
    return name, value


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
