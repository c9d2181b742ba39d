import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shim.engine import daemon_process
from shim.engine.daemon_process import daemon_pid

LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(path: Path) -> Iterator[int]:
    """Run another process that listens at `path`."""
    command = [sys.executable, "-c", LISTEN, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield process.pid


def test_the_process_that_listens_is_the_daemon(tmp_path: Path) -> None:
    with listening(tmp_path / "d.sock") as pid:
        assert daemon_pid(str(tmp_path / "d.sock")) == pid


def test_the_pid_is_0_without_a_socket(tmp_path: Path) -> None:
    assert daemon_pid(str(tmp_path / "none.sock")) == 0


@pytest.fixture
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel name init as the listener, as with socket activation."""
    monkeypatch.setattr(daemon_process, "_listener_pid", lambda _path: 1)


@pytest.mark.usefixtures("activated")
def test_with_socket_activation_the_other_holder_of_the_socket_is_the_daemon(tmp_path: Path) -> None:
    link = tmp_path / "link.sock"
    link.symlink_to(tmp_path / "d.sock")
    with listening(tmp_path / "d.sock") as pid:
        assert daemon_pid(str(tmp_path / "d.sock")) == pid
        assert daemon_pid(str(link)) == pid


@pytest.mark.usefixtures("activated")
def test_a_daemon_that_is_init_itself_is_found(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen()

        assert daemon_pid(str(tmp_path / "d.sock")) == 1
        assert daemon_pid(str(tmp_path / "other.sock")) == os.getpid()


@pytest.mark.usefixtures("activated")
@pytest.mark.parametrize("held_by", ["77", "88"])
def test_the_last_known_daemon_is_tried_first(tmp_path: Path, held_by: str) -> None:
    """If two processes hold the socket, as between fork and exec, the known process counts while it holds it."""
    path = str(tmp_path / "d.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        for pid in ("77", "88"):
            (tmp_path / pid / "fd").mkdir(parents=True)
            (tmp_path / pid / "fd/3").symlink_to(f"socket:[{os.fstat(listener.fileno()).st_ino}]")

        assert daemon_pid(path, likely=int(held_by), proc=tmp_path) == int(held_by)
        (tmp_path / held_by / "fd/3").unlink()
        (other,) = {"77", "88"} - {held_by}
        assert daemon_pid(path, likely=int(held_by), proc=tmp_path) == int(other)


SEPARATORS = ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\n\udcff"]
"""Line ends: for the kernel, for str.splitlines, and for a file that is opened as text."""


@pytest.mark.usefixtures("activated")
@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_a_socket_name_cannot_pose_as_the_daemons_socket(
    tmp_path: Path, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with listening(Path("other.sock")) as attacker, socket.socket(socket.AF_UNIX) as evil:
        held = (link.readlink().name for link in Path(f"/proc/{attacker}/fd").iterdir())
        inode = next(name[8:-1] for name in held if name.startswith("socket"))
        evil.bind(os.fsencode(f"\0a{separator}0: 2 0 10000 1 1 {inode} d.sock{separator}"))
        evil.listen()
        with listening(Path("d.sock")) as daemon:
            assert daemon_pid("d.sock") == daemon
            assert daemon_pid("d.sock", likely=attacker) == daemon


@pytest.mark.usefixtures("activated")
def test_a_socket_of_the_same_name_in_another_directory_is_not_the_daemons(tmp_path: Path) -> None:
    """The same path in another directory, file system or mount namespace is another file."""
    there = tmp_path / "there"
    there.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(there)
        with listening(Path("d.sock")) as other:
            patch.chdir(tmp_path)
            with listening(Path("d.sock")) as daemon:
                assert daemon_pid("d.sock") == daemon
                assert daemon_pid("d.sock", likely=other) == daemon
