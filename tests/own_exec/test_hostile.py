"""Attacks of a command, or of other processes in its container, on the exec program and the server."""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shim.base.child_process import SERVER_SIGNALS
from shim.domain.errors import ShimError, Unavailable
from shim.oci_runtime.kernel import call, check
from shim.own_exec import report
from shim.own_exec.client import ExecProgram, NotBegun, Running
from shim.own_exec.command import Streams
from tests.own_exec.host import output_of, plan, running
from tests.waits import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")

CLONE_NEWPID = 0x20000000

ATTACK = f"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE = {56 if os.uname().machine == "x86_64" else 220}

def sibling():
    "Fork a child of this process's parent, which is the exec program."
    return libc.syscall(CLONE, ctypes.c_long(0x8000 | signal.SIGCHLD), *[ctypes.c_long(0)] * 4)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[ExecProgram]:
    made = ExecProgram(service=tmp_path / "no-such.sock")
    yield made
    made.stop()


def attack(script: str) -> list[str]:
    """Return the command that runs a script in Python."""
    return [sys.executable, "-IS", "-c", ATTACK + script]


def children(program: ExecProgram) -> list[str]:
    return Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()


def descriptors(pid: int | str = "self") -> int:
    """Return how many descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def state_of(pid: int) -> str:
    """Return the state of a process, a letter; nothing once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_child_that_a_command_gives_to_the_program_is_reaped(program: ExecProgram) -> None:
    # Otherwise the PID namespace of the container would never end.
    script = "read, write = os.pipe()\nif sibling() == 0: os.close(write); os.read(read, 1); os._exit(0)\nos.read(0, 1)"
    with running(program, *attack(script), stdin=True) as (found, streams):
        wait_until(lambda: len(children(program)) == 2)
        [left] = set(children(program)) - {str(found.pid)}
        os.kill(int(left), signal.SIGSTOP)
        streams.close_stdin()
        assert found.wait_ended(what="a test") == 0
    os.kill(int(left), signal.SIGKILL)
    wait_until(lambda: not children(program))


def test_a_traced_command_is_reaped_once_its_tracer_detaches(program: ExecProgram) -> None:
    script = "assert libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0; print('traced', flush=True); sys.stdin.read()"
    with running(program, "sleep", "600") as (found, _):
        command = [*attack(script), str(found.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
            assert tracer.stdout is not None
            assert tracer.stdout.readline() == b"traced\n"
            os.kill(found.pid, signal.SIGKILL)
            wait_until(lambda: state_of(found.pid) == "Z")
            assert found.wait_ended(what="a test", seconds=0.2) is None
        assert found.wait_ended(what="a test", seconds=10) == signal.SIGKILL


def test_a_command_that_makes_the_program_its_tracer_is_killed(program: ExecProgram) -> None:
    script = "assert libc.ptrace(0, 0, 0, 0) == 0; os.kill(os.getpid(), signal.SIGUSR1); os._exit(0)"
    with running(program, *attack(script)) as (found, _):
        assert found.wait_ended(what="a test", seconds=10) == signal.SIGKILL
    wait_until(lambda: not children(program))


def test_an_unknown_child_is_not_reaped_while_a_command_may_own_it(program: ExecProgram) -> None:
    # Otherwise a command could let many children end, and a later command with such a pid would seem to have ended.
    full, write = full_pipe()
    streams = Streams(stdin=False, tty=False)
    try:
        held = program.run(plan("true"), [*streams.theirs, write])  # the joining process blocks
        script = "pid = sibling()\nif pid == 0: os._exit(3)\nprint(pid)"
        with running(program, *attack(script)) as (found, output):
            pid = int(output_of(output)[1])
            assert found.wait_ended(what="a test") == 0
        with running(program, "sh", "-c", "exit 7") as (found, _):
            assert found.wait_ended(what="a test", seconds=10) == 7 << 8
        assert state_of(pid) == "Z"
        program.forget(held)
        wait_until(lambda: not children(program))
    finally:
        os.close(full)
        os.close(write)
        streams.release()


def full_pipe() -> tuple[int, int]:
    """Return both ends of a full pipe, on which a write blocks."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    return read, write


@contextmanager
def pid_namespace(script: str) -> Iterator[int]:
    """Run a script as the first process of a PID namespace inside the block; yield a descriptor of the namespace."""
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *attack(script)], stdout=subprocess.PIPE
    ) as unshared:
        try:
            assert unshared.stdout is not None
            assert unshared.stdout.readline() == b"begun\n"
            descriptor = os.open(f"/proc/{unshared.pid}/ns/pid_for_children", os.O_RDONLY)
            yield descriptor
            os.close(descriptor)
        finally:
            unshared.kill()


STOP_ALL = "print('begun', flush=True)\nwhile True:\n  try: os.kill(-1, signal.SIGSTOP)\n  except OSError: pass"
"""A first process that stops all other processes as soon as they exist."""


@contextmanager
def stopped_inside(program: ExecProgram, **fields: object) -> Iterator[int]:
    """Stop a process that has entered a PID namespace but not executed its command; yield its pid."""
    program.status()
    with pid_namespace(STOP_ALL) as namespace:
        for _ in range(100):
            streams = Streams(stdin=False, tty=False)
            descriptors_ = [*streams.theirs, namespace]
            found = program.run(plan("sleep", "600", namespaces=[CLONE_NEWPID], **fields), descriptors_)
            pid = stopped_child(program)
            is_before = Path(f"/proc/{pid}/comm").read_text() == "own-exec\n"
            if is_before:
                yield pid
            program.forget(found)
            streams.release()
            wait_until(lambda: not children(program))
            if is_before:
                return
    pytest.fail("no process was stopped in time")


def stopped_child(program: ExecProgram) -> int:
    """Wait until the only child of the program is stopped, and return its pid."""
    found: list[str] = []

    def is_stopped() -> bool:
        found[:] = children(program)
        return [state_of(int(each)) for each in found] == ["T"]

    wait_until(is_stopped)
    return int(found[0])


def test_a_process_stopped_before_it_executes_is_killed_with_its_command(program: ExecProgram) -> None:
    with stopped_inside(program):
        pass
    assert not children(program)


def test_a_stolen_end_of_the_report_socket_does_not_delay_the_end(program: ExecProgram) -> None:
    with running(program, "true") as (found, _):
        found.wait_ended(what="a test")
    before = descriptors(program.pid)
    with stopped_inside(program) as pid:
        # A container with CAP_SYS_PTRACE can do this.
        handle = os.pidfd_open(pid)
        kept = ctypes.CDLL(None).syscall(ctypes.c_long(438), handle, 3, 0)
        assert kept >= 0
        os.write(kept, b"f")
        os.write(kept, b"t")
    wait_until(lambda: descriptors(program.pid) == before)
    os.close(kept)
    os.close(handle)


def test_a_process_inside_cannot_be_inspected_before_it_executes(program: ExecProgram) -> None:
    setting = Path("/proc/sys/fs/suid_dumpable")
    was = setting.read_text()
    setting.write_text("1")
    try:
        with stopped_inside(program, uid=1234) as pid:
            assert Path(f"/proc/{pid}/fd").stat().st_uid == 0
    finally:
        setting.write_text(was)


@pytest.mark.parametrize(
    "message",
    [b"", b"t", b"f", b"f\1", b"b", b"x" * 300, b"r"],
)
def test_malformed_reports_do_no_harm(message: bytes) -> None:
    ours, theirs = report.pair()
    with socket.socket() as attached:
        before = descriptors()
        theirs.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, attached.fileno().to_bytes(4, "little") * 3)])
        report.receive(ours)
        assert descriptors() <= before + (message == b"t")
    ours.close()
    theirs.close()


def test_a_stopped_program_does_not_block_the_server(program: ExecProgram) -> None:
    program.status()
    os.kill(program.pid, signal.SIGSTOP)
    streams = Streams(stdin=False, tty=False)
    begun: list[Running] = []

    def run_many() -> None:
        with suppress(Unavailable):
            begun.extend(program.run(plan("true"), streams.theirs) for _ in range(1000))

    thread = threading.Thread(target=run_many, daemon=True)
    thread.start()
    try:
        thread.join(20)
        assert not thread.is_alive()
    finally:
        os.kill(program.pid, signal.SIGCONT)
        thread.join()
    for each in begun:
        program.forget(each)
    streams.release()


def test_output_stolen_by_another_process_does_not_block_the_reader(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "echo $$; sleep 600") as (found, streams):
        thief = os.open(f"/proc/{found.pid}/fd/1", os.O_RDONLY)
        wait = streams._wait_readable

        def stolen() -> list[int]:
            ready = wait()
            if not taken:
                taken.append(os.read(thief, 100))
            return ready

        taken: list[bytes] = []
        streams._wait_readable = stolen  # type: ignore[method-assign]
        reader = threading.Thread(target=lambda: list(streams.frames()), daemon=True)
        reader.start()
        wait_until(lambda: taken)
        os.close(thief)
        streams.close()
        reader.join(5)
        assert not reader.is_alive()
        found.kill()
        reader.join()


def test_endless_output_is_read_for_a_while_after_the_end(
    program: ExecProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.own_exec.command.DRAIN_SECONDS", 0.2)
    with running(program, "sh", "-c", "trap '' HUP; yes & echo $! >&2") as (_, streams):
        words: list[bytes] = []
        reader = threading.Thread(
            target=lambda: words.extend(piece for number, piece in streams.frames() if number == 2), daemon=True
        )
        reader.start()
        wait_until(lambda: words)
        reader.join(10)
        is_read = reader.is_alive()
        os.kill(int(words[0]), signal.SIGKILL)
        reader.join()
        assert not is_read


@pytest.mark.parametrize(
    "fields",
    [{"arguments": [b"/bin/true", b"a\0b"]}, {"environment": [(b"", b"x"), (b"HOME", b"/")]}],
    ids=["argument", "environment"],
)
def test_an_invalid_plan_is_a_failure(program: ExecProgram, fields: dict[str, Any]) -> None:
    with pytest.raises(NotBegun), running(program, "/bin/true", **fields):
        pass


def test_an_unused_terminal_is_closed(program: ExecProgram) -> None:
    program.status()
    before = descriptors()
    streams = Streams(stdin=False, tty=True)
    found = program.run(plan("sleep", "600", terminal=(80, 24)), streams.theirs)
    wait_until(lambda: found._terminal >= 0)
    program.forget(found)
    streams.release()
    assert descriptors() == before


def test_input_for_an_ended_terminal_reaches_no_other_descriptor(program: ExecProgram) -> None:
    with running(program, "true", tty=True) as (found, streams):
        while streams.read():
            pass
        found.wait_ended(what="a test")
        opened = [os.pipe() for _ in range(8)]  # take the lowest free descriptors
        try:
            streams.resize(width=1, height=1)
            with suppress(ShimError):
                streams.write(b"secret")
            for read, _ in opened:
                os.set_blocking(read, False)
                with pytest.raises(BlockingIOError):
                    os.read(read, 100)
        finally:
            for each in [end for pair in opened for end in pair]:
                os.close(each)


def test_a_failed_send_of_a_start_leaves_no_descriptor(program: ExecProgram) -> None:
    program.status()
    streams = Streams(stdin=False, tty=False)
    before = descriptors()
    many = [streams.theirs[0]] * 300  # more than the kernel permits with a packet
    with pytest.raises(Unavailable):
        program.run(plan("true"), many)
    assert descriptors() == before
    streams.release()


@pytest.mark.parametrize("number", SERVER_SIGNALS)
def test_a_signal_for_all_processes_of_the_server_does_not_end_the_program(program: ExecProgram, number: int) -> None:
    with running(program, "cat", stdin=True) as (found, streams):
        os.kill(program.pid, number)
        with running(program, "true") as (other, _):
            assert other.wait_ended(what="a test") == 0
        streams.close_stdin()
        assert found.wait_ended(what="a test") == 0


def test_the_mount_of_the_programs_file_cannot_be_changed(program: ExecProgram) -> None:
    # Not even root with CAP_SYS_ADMIN and CAP_SYS_PTRACE can do it: the mount has no path.
    program.status()
    opened = os.open(f"/proc/{program.pid}/exe", os.O_PATH)
    attributes = struct.pack("QQQQ", 0, 1, 0, 0)  # clear MOUNT_ATTR_RDONLY
    for number, arguments in ((442, (b"", 0x1000, attributes, len(attributes))), (428, (b"", 0x1001))):
        with pytest.raises(OSError, match="Invalid argument"):
            check(call(number, opened, *arguments), "change the mount")
    assert os.fstatvfs(opened).f_flag & os.ST_RDONLY
    os.close(opened)
