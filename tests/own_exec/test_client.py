import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.base import deadline, heartbeat
from shim.base.proc import value_of
from shim.base.process import ProcessHandle
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted, ShimError, Unavailable
from shim.own_exec import __file__ as package
from shim.own_exec import client as module
from shim.own_exec.client import ExecProgram, NotBegun
from tests.own_exec.host import output_of, running
from tests.threads import no_thread_for
from tests.waits import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[ExecProgram]:
    made = ExecProgram(service=tmp_path / "no-such.sock")
    yield made
    made.stop()


def status_of(running_: module.Running) -> int:
    status = running_.wait_ended(what="a test")
    assert status is not None
    return os.waitstatus_to_exitcode(status)


def test_a_command_gives_output_and_exit_code(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "echo out; echo err >&2; exit 7") as (found, streams):
        assert output_of(streams) == {1: b"out\n", 2: b"err\n"}
        assert status_of(found) == 7


def test_input_reaches_the_command_until_it_is_closed(program: ExecProgram) -> None:
    with running(program, "cat", stdin=True) as (found, streams):

        def write() -> None:
            streams.write(b"x" * (1 << 20))
            streams.close_stdin()

        writer = threading.Thread(target=write)
        writer.start()
        assert output_of(streams)[1] == b"x" * (1 << 20)
        writer.join()
        assert status_of(found) == 0


def test_a_write_to_a_closed_input_fails(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "exec <&-; echo closed; sleep 600", stdin=True) as (_, streams):
        assert next(streams.frames()) == (1, b"closed\n")
        with pytest.raises(ShimError, match="does not read its input"):
            streams.write(b"x")


def test_a_command_gets_a_terminal_that_can_be_resized(program: ExecProgram) -> None:
    script = "stty size; test -t 0 && tty; trap 'stty size; exit 3' WINCH; echo ready; sleep 600 & wait"
    with running(program, "sh", "-c", script, tty=True) as (found, streams):
        text = b""
        while b"ready" not in text:
            text += streams.read()
        assert text.split()[:2] == [b"24", b"80"]
        assert b"/dev/pts/" in text
        streams.resize(width=100, height=30)
        while piece := streams.read():
            text += piece
        assert b"30 100" in text
        assert status_of(found) == 3


def test_a_missing_program_has_not_begun(program: ExecProgram) -> None:
    with pytest.raises(NotBegun, match="_execute: No such file or directory"), running(program, "no-such-program"):
        pass


def test_a_missing_working_directory_fails_its_step(program: ExecProgram) -> None:
    with (
        pytest.raises(NotBegun, match="_change_directory: No such file"),
        running(program, "true", directory=b"/no/such"),
    ):
        pass


def test_a_limit_that_may_not_be_raised_fails_its_step(program: ExecProgram) -> None:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    above_the_kernels = 1 << 62 if most < 0 else most + 1
    with pytest.raises(NotBegun, match="_inherit"), running(program, "true", limits={7: (1, above_the_kernels)}):
        pass


def test_the_status_has_the_signal_that_ended_the_command(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "kill -9 $$") as (found, _):
        assert status_of(found) == -signal.SIGKILL


def test_a_kill_ends_the_process_group(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "sleep 600 & echo $!; sleep 600") as (found, streams):
        _, piece = next(streams.frames())
        with ProcessHandle(int(piece)) as child:
            found.kill()
            assert status_of(found) == -signal.SIGKILL
            assert child.ends_within(10)


def test_forgetting_a_running_command_kills_it(program: ExecProgram) -> None:
    with running(program, "sleep", "600") as (found, _):
        process = ProcessHandle(found.pid)
    with process:
        assert process.ends_within(10)


def test_output_of_background_processes_is_read_for_a_while(
    program: ExecProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.own_exec.command.DRAIN_SECONDS", 0.2)
    with running(program, "sh", "-c", "(trap '' HUP; echo early; sleep 600) & echo $!") as (found, streams):
        words = set(output_of(streams)[1].split())
        assert status_of(found) == 0
        [left] = words - {b"early"}
        os.kill(int(left), signal.SIGKILL)


def test_a_read_ends_with_its_scope_and_continues_in_another(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "read line; echo $line", stdin=True) as (_, streams):
        with pytest.raises(DeadlineExceeded), deadline.bound(0.05):
            next(streams.frames())
        scope = deadline.Scope()
        scope.cancel()
        with pytest.raises(Cancelled), deadline.entered(scope):
            next(streams.frames())
        streams.write(b"late\n")
        assert output_of(streams)[1] == b"late\n"


def test_a_close_ends_a_read(program: ExecProgram) -> None:
    with running(program, "sleep", "600") as (_, streams):
        timer = threading.Timer(0.05, streams.close)
        timer.start()
        assert output_of(streams) == {1: b"", 2: b""}
        timer.join()


def test_commands_beyond_the_limit_are_refused(program: ExecProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMMANDS", 2)
    with (
        running(program, "sleep", "600"),
        running(program, "sleep", "600"),
        pytest.raises(ResourceExhausted, match="2 commands run already"),
        running(program, "true"),
    ):
        pass
    with running(program, "true") as (found, _):
        assert status_of(found) == 0


def test_the_death_of_the_program_kills_its_commands(program: ExecProgram) -> None:
    with running(program, "sleep", "600") as (found, _), ProcessHandle(found.pid) as process:
        os.kill(program.pid, signal.SIGKILL)
        with pytest.raises(ShimError, match="the exec program has ended"):
            found.wait_ended(what="a test")
        assert process.ends_within(10)
    with running(program, "true") as (found, _):
        assert status_of(found) == 0


def test_a_program_that_does_not_answer_is_replaced(program: ExecProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PING_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 0.2)
    program.status()
    stopped = program.pid
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(NotBegun, match="the exec program has ended"), running(program, "true"):
        pass
    wait_until(lambda: program.pid != stopped)
    with running(program, "true") as (found, _):
        assert status_of(found) == 0


def test_a_stop_kills_running_commands(program: ExecProgram) -> None:
    with running(program, "sleep", "600") as (found, _), ProcessHandle(found.pid) as process:
        program.stop()
        assert process.ends_within(10)
    with pytest.raises(Unavailable, match="stopping"), running(program, "true"):
        pass


def test_many_commands_leave_no_process_and_no_descriptor(program: ExecProgram) -> None:
    with running(program, "true") as (found, _):
        status_of(found)

    def descriptors() -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in ("self", program.pid)]

    before = descriptors()
    for _ in range(50):
        with running(program, "sh", "-c", "exit 3") as (found, streams):
            output_of(streams)
            assert status_of(found) == 3
        with pytest.raises(NotBegun), running(program, "no-such-program"):
            pass
    wait_until(lambda: descriptors() == before)
    assert children_of(program) == b""


def test_the_programs_file_cannot_be_written(program: ExecProgram) -> None:
    program.status()
    assert os.statvfs(f"/proc/{program.pid}/exe").f_flag & os.ST_RDONLY


def test_a_command_has_only_its_streams_as_descriptors(program: ExecProgram) -> None:
    with running(program, "ls", "/proc/self/fd") as (_, streams):
        assert output_of(streams)[1].split() == [b"0", b"1", b"2", b"3"]  # `ls` itself opens 3


def test_a_command_ignores_and_blocks_no_signal(program: ExecProgram) -> None:
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as with nohup
    try:
        program.status()
    finally:
        signal.signal(signal.SIGQUIT, before)
    with running(program, "cat", "/proc/self/status") as (_, streams):
        status = output_of(streams)[1]
    assert int(value_of(status, b"SigBlk"), 16) == 0
    assert int(value_of(status, b"SigIgn"), 16) & 0x7FFFFFFF == 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Path]:
    """Listen as systemd does for pydockershim-exec.socket, and start the program for the first client."""
    path = tmp_path / "exec.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        program = str(Path(package).with_name("__main__.py"))
        script = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
        )
        command = [sys.executable, "-c", script, str(listener.fileno()), "-IS", program, "listen"]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            yield path
            assert process.wait(10) == 0


def test_a_program_started_by_systemd_runs_commands(service: Path) -> None:
    program = ExecProgram(service=service)
    try:
        with running(program, "sh", "-c", "echo $PPID; exit 4") as (found, streams):
            output = output_of(streams)[1]
            assert status_of(found) == 4
        assert int(output) == int(value_of(program.status(), b"Pid"))
    finally:
        program.stop()


def test_a_plan_may_be_longer_than_a_packet(program: ExecProgram) -> None:
    with running(program, "sh", "-c", "echo ${#1}", "sh", "x" * 100_000) as (_, streams):
        assert output_of(streams)[1] == b"100000\n"


def test_the_scope_ends_the_wait_for_a_start(program: ExecProgram) -> None:
    program.status()
    os.kill(program.pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(DeadlineExceeded), deadline.bound(0.1), running(program, "true"):
            pass
        assert time.monotonic() - began < heartbeat.PING_SECONDS
    finally:
        os.kill(program.pid, signal.SIGCONT)


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecProgram]:
    """Provide a program on a socket that nobody answers; it is given up soon."""
    monkeypatch.setattr(heartbeat, "PING_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 0.2)
    path = tmp_path / "exec.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        program = ExecProgram(service=path)
        yield program
        program.stop()


def test_a_socket_without_an_answer_is_given_up(silent: ExecProgram) -> None:
    with pytest.raises(NotBegun, match="the exec program has ended"), running(silent, "true"):
        pass


def test_a_command_that_has_gained_privileges_is_killed_with_the_program(program: ExecProgram) -> None:
    """The kernel does not kill such a command with the program."""
    with running(program, "sleep", "600", effective=0, permitted=0) as (found, _), ProcessHandle(found.pid) as process:
        os.kill(program.pid, signal.SIGKILL)
        assert process.ends_within(10)


def test_a_process_that_dies_before_it_reports_is_reaped(program: ExecProgram) -> None:
    """An unreaped process in its PID namespace would keep a container from ending."""
    load_number, kill, allow = (0x20, 0, 0, 0), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)
    kill_at_setsid = b"".join(struct.pack("HBBI", *each) for each in (load_number, (0x15, 0, 1, 112), kill, allow))
    for _ in range(20):
        with pytest.raises(NotBegun, match="it was killed"), running(program, "true", filter=kill_at_setsid):
            pass
    wait_until(lambda: not children_of(program))


def children_of(program: ExecProgram) -> bytes:
    found = subprocess.run(["ps", "--ppid", str(program.pid), "-o", "pid="], capture_output=True, check=False)
    return found.stdout


def test_a_program_that_does_not_begin_is_given_up_and_not_awaited_again(silent: ExecProgram) -> None:
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(Unavailable):
            silent.status()
    assert time.monotonic() - began < module._HELLO_SECONDS


def test_a_program_of_systemd_takes_no_server_that_has_given_up(service: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.connect(str(service))
    program = ExecProgram(service=service)
    try:
        with running(program, "sh", "-c", "exit 4") as (found, _):
            assert status_of(found) == 4
    finally:
        program.stop()


def test_a_program_whose_packets_no_thread_can_read_is_ended(
    program: ExecProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before, had = set(Path("/proc/self/fd").iterdir()), children.read_text()
    with monkeypatch.context() as short:
        no_thread_for("own-exec", short)
        with pytest.raises(Unavailable, match="can't start new thread"):
            program.status()
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert children.read_text() == had
    program.stop()
