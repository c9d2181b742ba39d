"""The helper process ends silently with its server, whatever is in transit between them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shim.hostfs.packets import MAX_PACKET, PING, packed

SECONDS = 30.0


@contextmanager
def worker() -> Iterator[tuple[socket.socket, "subprocess.Popen[bytes]"]]:
    """Start a worker; kill it if it still runs at the end."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "shim.hostfs.worker", str(its.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[its.fileno()], stderr=subprocess.PIPE) as process:
        its.close()
        try:
            ours.settimeout(SECONDS)
            ours.send(PING)
            assert ours.recv(MAX_PACKET) == PING
            yield ours, process
        finally:
            process.kill()


def stopped(process: "subprocess.Popen[bytes]") -> None:
    """Stop the process; return when it has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_unread_ping_does_not_block_the_end() -> None:
    with worker() as (server, process):
        stopped(process)
        server.send(PING)
        server.close()
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, b"")


def test_unread_answer_does_not_block_the_end() -> None:
    with worker() as (server, process):
        server.send(PING)
        assert server.recv(MAX_PACKET, socket.MSG_PEEK) == PING
        server.close()
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, b"")


def test_the_answer_of_a_call_whose_server_has_ended_is_dropped() -> None:
    with worker() as (server, process):
        stopped(process)
        server.send(packed(1, (os.getcwd, ())))
        server.close()
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, b"")
