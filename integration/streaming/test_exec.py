import fcntl
import hashlib
import os
import pty
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, secured, unused_name
from integration.streaming.api_server import ApiServer
from integration.streaming.conftest import Kubectl
from integration.streaming.leftovers import Leftovers, processes
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

pytestmark = pytest.mark.usefixtures("pod")

MIB = 1 << 20


@pytest.fixture
def number() -> str:
    """Digits that identify the processes of a test."""
    return str(int(unused_name("")[1:], 16))


@pytest.mark.parametrize("code", [0, 3, 137])
def test_kubectl_exits_with_the_commands_exit_code(kubectl: Kubectl, code: int) -> None:
    done = kubectl.run("exec", "box", "--", "sh", "-c", f"exit {code}")

    assert done.returncode == code, done.stderr


def test_a_command_runs_as_the_containers_user(kubectl: Kubectl, kubelet: Kubelet, api_server: ApiServer) -> None:
    """The image's user `www` is a member of groups 44 and 50; the request sets uid and supplemental groups."""
    pod = kubelet.pod()
    user = pb.Int64Value(value=1000)
    group = pb.Int64Value(value=4000)
    kubelet.started(pod, **secured(run_as_user=user, run_as_group=group, supplemental_groups=[7]))
    api_server.pods["user"] = pod.id

    script = "grep -E '^(Uid|Gid|Groups):' /proc/self/status; echo $HOME"
    done = kubectl.run("exec", "user", "--", "sh", "-c", script)

    *lines, home = done.stdout.decode().splitlines()
    assert [line.split()[1:] for line in lines] == [["1000"] * 4, ["4000"] * 4, ["7", "44", "50", "4000"]]
    assert home == "/home"


def test_stdout_and_stderr_are_separate(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "box", "--", "sh", "-c", "echo to out; echo to err >&2")

    assert (done.stdout, done.stderr.splitlines()[-1]) == (b"to out\n", b"to err")


def test_input_ends_with_the_clients_input(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "-i", "box", "--", "sh", "-c", "cat; echo end", stdin=b"some input\n")

    assert done.stdout == b"some input\nend\n"


def test_a_process_need_not_read_its_input(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "-i", "box", "--", "sh", "-c", "exit 5", stdin=b"x" * 4 * MIB)

    assert done.returncode == 5, done.stderr


def test_100_mib_of_input_arrive(kubectl: Kubectl, tmp_path: Path) -> None:
    data = os.urandom(MIB) * 100
    source = tmp_path / "input"
    source.write_bytes(data)
    with source.open("rb") as stdin:
        client = kubectl.begin("exec", "-i", "box", "--", "md5sum", stdin=stdin.fileno())
        out, err = client.communicate(timeout=120)

    assert out.split()[:1] == [hashlib.md5(data).hexdigest().encode()], err


def test_100_mib_of_output_reach_a_slow_reader(kubectl: Kubectl, served: Served) -> None:
    before = served.server.rss()
    client = kubectl.begin("exec", "box", "--", "sh", "-c", "head -c 104857600 /dev/zero; echo end")
    assert client.stdout is not None
    got = bytearray(client.stdout.read(MIB))
    # The client does not read meanwhile, so that all buffers on the way fill.
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(2)
    grown = served.server.rss() - before
    out, err = client.communicate(timeout=120)

    assert len(got) + len(out) == 100 * MIB + len(b"end\n"), err
    assert out.endswith(b"\0end\n")
    assert client.returncode == 0
    assert grown < 16 * MIB


def test_input_and_output_flow_at_the_same_time(kubectl: Kubectl) -> None:
    data = os.urandom(MIB) * 16

    done = kubectl.run("exec", "-i", "box", "--", "cat", stdin=data)

    assert hashlib.md5(done.stdout).digest() == hashlib.md5(data).digest(), done.stderr


def test_files_are_copied_both_ways(kubectl: Kubectl, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(MIB) * 50)

    there = kubectl.run("cp", str(source), "box:/tmp/copied", timeout=120)
    again = kubectl.run("cp", "box:/tmp/copied", str(back), timeout=120)

    assert (there.returncode, again.returncode) == (0, 0), there.stderr + again.stderr
    assert hashlib.md5(back.read_bytes()).digest() == hashlib.md5(source.read_bytes()).digest()
    kubectl.run("exec", "box", "--", "rm", "/tmp/copied")


def test_20_concurrent_commands_have_their_output(kubectl: Kubectl) -> None:
    with ThreadPoolExecutor(20) as pool:
        done = list(
            pool.map(lambda it: kubectl.run("exec", "box", "--", "sh", "-c", f"echo {it}; exit {it}"), range(20))
        )

    assert [(it.stdout, it.returncode) for it in done] == [(f"{it}\n".encode(), it) for it in range(20)]


def test_a_command_that_cannot_be_run_fails(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "box", "--", "/no/such/program")

    assert done.returncode != 0
    assert b"/no/such/program" in done.stdout + done.stderr


# With a terminal


class Terminal:
    """A kubectl with a pseudo-terminal."""

    def __init__(self, command: list[str], *, environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.resize(width=100, height=30)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave, env=environ
        )
        os.close(slave)
        self.shown = bytearray()
        self._changed = threading.Condition()
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        while not self._closing:
            # Not in `read`: the kernel keeps a terminal open while a caller blocks in it.
            if not poll.poll(50):
                continue
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return
            with self._changed:
                self.shown += piece
                self._changed.notify_all()

    def resize(self, *, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def wait_shown(self, text: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.shown, 30), bytes(self.shown)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reader.join()
            os.close(self._master)


@contextmanager
def terminal(kubectl: Kubectl, *command: str, pod: str = "box") -> Iterator[Terminal]:
    made = Terminal(kubectl.command("exec", "-it", pod, "--", *command), environ=kubectl.environ())
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        made.close()


def test_a_terminal_follows_the_size_of_the_clients(kubectl: Kubectl) -> None:
    with terminal(kubectl, "sh") as user:
        user.type(b"until stty size | grep '30 100'; do sleep 0.1; done\n")
        user.wait_shown(b"\r\n30 100")
        user.resize(width=123, height=45)
        user.type(b"until stty size | grep '45 123'; do sleep 0.1; done\n")
        user.wait_shown(b"\r\n45 123")
        user.type(b"exit 7\n")

        assert user.process.wait(30) == 7


def test_dockers_detach_keys_reach_the_process(kubectl: Kubectl) -> None:
    with terminal(kubectl, "sh", "-c", "stty raw -echo; echo ready; head -c 2 | od -An -tx1; echo end") as user:
        user.wait_shown(b"ready")
        user.type(b"\x10")
        user.type(b"\x11")
        user.wait_shown(b"10 11")
        user.wait_shown(b"end")


def test_a_closed_terminal_ends_the_shell_and_its_command(kubectl: Kubectl, number: str) -> None:
    with terminal(kubectl, "sh") as user:
        user.type(f"sleep 600.{number}\n".encode())
        wait_until(lambda: processes(f"600.{number}"))
        user.close()
        user.process.wait(30)

        wait_until(lambda: not processes(f"600.{number}"))


# Clients that disconnect

KILLED = 3


def test_a_killed_client_leaves_nothing(kubectl: Kubectl, served: Served, number: str) -> None:
    kubectl.run("exec", "box", "--", "true")
    # The server may keep another connection to Docker once; a leak would grow each time.
    for _ in range(KILLED):
        before = Leftovers.of(served)
        client = kubectl.begin("exec", "-i", "box", "--", "sleep", f"600.{number}")
        wait_until(lambda: processes(f"600.{number}"))

        client.kill()
        client.communicate()

        wait_until(lambda: not processes(f"600.{number}"))
        if settles(served, before):
            return
    pytest.fail(f"each of {KILLED} clients left something behind")


def settles(served: Served, before: Leftovers) -> bool:
    try:
        return wait_until(lambda: Leftovers.of(served) <= before)
    except AssertionError:
        return False


def test_a_client_killed_during_a_large_transfer_leaves_nothing(kubectl: Kubectl, served: Served, number: str) -> None:
    before = Leftovers.of(served)
    client = kubectl.begin("exec", "-i", "box", "--", "sh", "-c", f"yes 600.{number}; true")
    assert client.stdout is not None
    client.stdout.read(MIB)

    client.kill()
    client.communicate()

    wait_until(lambda: not processes(f"600.{number}"))
    wait_until(lambda: Leftovers.of(served) <= before)
