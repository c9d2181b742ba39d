"""Tests with real child processes that run small modules."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim.base.child_process import ChildProcess

SOON = 30.0
"""Seconds for a start or an exit on a busy machine."""

Start = Callable[..., ChildProcess]
"""`start(body, *arguments)` runs a module whose socket is the variable `server`."""

BEGINNING = """
import os, signal, socket, sys, time
server = socket.socket(fileno=int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.syspath_prepend(tmp_path)
    started = []

    def start_module(body: str, *arguments: str) -> ChildProcess:
        (tmp_path / "child_of_test.py").write_text(BEGINNING + body)
        started.append(ChildProcess("child_of_test", *arguments))
        started[-1].socket.settimeout(SOON)
        return started[-1]

    yield start_module
    for child in started:
        child.socket.close()
        child.kill()
        child.reap(seconds=SOON)


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_the_child_gets_its_socket_and_arguments(start: Start) -> None:
    child = start("server.send(f'{os.getpid()} {sys.argv[2:]}'.encode())", "--loud", "x")

    assert child.socket.recv(100).decode() == f"{child.pid} ['--loud', 'x']"


def test_the_child_sees_the_end_of_the_servers_socket(start: Start) -> None:
    child = start("server.send(b'begun'); server.recv(1); sys.exit(3)")
    assert child.socket.recv(100) == b"begun"
    assert child.exit_code is None
    child.socket.close()

    child.reap(seconds=SOON)

    assert child.exit_code == 3


def test_the_server_sees_the_end_of_the_child(start: Start) -> None:
    child = start("server.send(b'begun'); server.recv(1)")
    assert child.socket.recv(100) == b"begun"
    child.kill()

    assert child.socket.recv(100) == b""

    child.reap(seconds=SOON)
    assert child.exit_code == -signal.SIGKILL


def test_signals_that_end_the_server_do_not_end_the_child(start: Start) -> None:
    child = start("server.send(b'begun'); server.recv(1); server.send(b'alive')")
    assert child.socket.recv(100) == b"begun"
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)
    child.socket.send(b"?")

    assert child.socket.recv(100) == b"alive"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}


def test_reap_kills_a_child_that_does_not_exit_in_time(start: Start) -> None:
    child = start("time.sleep(1000)")
    began = time.monotonic()

    child.reap(seconds=0.2)

    assert child.exit_code == -signal.SIGKILL
    assert time.monotonic() - began >= 0.2


def test_reap_gives_up_on_a_child_that_cannot_be_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start("time.sleep(1000)")
    with monkeypatch.context() as stuck:  # a test cannot make a process that SIGKILL does not end
        stuck.setattr(child, "kill", lambda: None)
        child.reap(seconds=0.1)

    assert child.exit_code is None


def test_a_failed_start_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    before = open_descriptors()
    with monkeypatch.context() as short:
        short.setattr(subprocess, "Popen", refuse)
        with pytest.raises(OSError, match="Resource temporarily unavailable"):
            ChildProcess("shim.hostfs.worker")
    assert open_descriptors() == before


def test_a_second_child_does_not_inherit_the_first_childs_socket(start: Start) -> None:
    """Otherwise the second child would keep the socket of the first child open."""
    body = "server.send(b'begun'); server.recv(1)"
    first, second = start(body), start(body)
    assert first.socket.recv(100) == second.socket.recv(100) == b"begun"
    first.kill()

    assert first.socket.recv(100) == b""
    second.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.socket.recv(100)


DIE = "from shim.base.child_process import die_with_parent; die_with_parent({}); print('lives')"


def test_a_process_whose_parent_has_ended_exits() -> None:
    done = subprocess.run([sys.executable, "-c", DIE.format(1 << 22)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "process 4194304, which started this one, has ended\n"


def test_a_process_whose_parent_is_alive_continues() -> None:
    code = f"import os; {DIE.format('os.getppid()')}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "lives\n"
