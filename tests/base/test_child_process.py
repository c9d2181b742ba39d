"""Real processes of small modules, on their sockets."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim.base.child_process import ChildProcess

SOON = 30.0
"""Seconds that a start or an end may take on a busy machine."""

Start = Callable[..., ChildProcess]
"""`start(body, *arguments)` runs a module that has its socket as `server`."""

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


def test_it_has_its_socket_and_arguments(start: Start) -> None:
    child = start("server.send(f'{os.getpid()} {sys.argv[2:]}'.encode())", "--loud", "x")

    assert child.socket.recv(100).decode() == f"{child.pid} ['--loud', 'x']"


def test_it_sees_the_end_of_the_servers_socket(start: Start) -> None:
    child = start("server.send(b'begun'); server.recv(1); sys.exit(3)")
    assert child.socket.recv(100) == b"begun"
    assert child.exit_code is None
    child.socket.close()

    child.reap(seconds=SOON)

    assert child.exit_code == 3


def test_the_server_sees_its_end(start: Start) -> None:
    child = start("server.send(b'begun'); server.recv(1)")
    assert child.socket.recv(100) == b"begun"
    child.kill()

    assert child.socket.recv(100) == b""

    child.reap(seconds=SOON)
    assert child.exit_code == -signal.SIGKILL


def test_signals_that_end_the_server_do_not_end_it(start: Start) -> None:
    child = start("server.send(b'begun'); server.recv(1); server.send(b'alive')")
    assert child.socket.recv(100) == b"begun"
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)
    child.socket.send(b"?")

    assert child.socket.recv(100) == b"alive"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}


def test_one_that_goes_on_is_killed_after_the_time_it_was_given(start: Start) -> None:
    child = start("time.sleep(1000)")
    began = time.monotonic()

    child.reap(seconds=0.2)

    assert child.exit_code == -signal.SIGKILL
    assert time.monotonic() - began >= 0.2


def test_one_that_cannot_be_killed_is_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start("time.sleep(1000)")
    with monkeypatch.context() as stuck:  # no process of a test can be put where a kill does not reach it
        stuck.setattr(child, "kill", lambda: None)
        child.reap(seconds=0.1)

    assert child.exit_code is None


def test_where_none_can_be_started_no_descriptor_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    before = open_descriptors()
    with monkeypatch.context() as short:
        short.setattr(subprocess, "Popen", refuse)
        with pytest.raises(OSError, match="Resource temporarily unavailable"):
            ChildProcess("shim.hostfs.worker")
    assert open_descriptors() == before


def test_the_end_of_one_is_not_the_end_of_another(start: Start) -> None:
    """Else the second would hold the first one's end of its socket open."""
    body = "server.send(b'begun'); server.recv(1)"
    first, second = start(body), start(body)
    assert first.socket.recv(100) == second.socket.recv(100) == b"begun"
    first.kill()

    assert first.socket.recv(100) == b""
    second.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.socket.recv(100)
