import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.cri import activation
from shim.cri.activation import listening_socket, notify
from shim.domain.errors import FailedPrecondition
from tests.descriptors import no_descriptor_free


def passed(monkeypatch: pytest.MonkeyPatch, passed: socket.socket) -> dict[str, str]:
    """Pass a copy of the socket like systemd, at another descriptor than 3."""
    monkeypatch.setattr(activation, "_FIRST_FD", os.dup(passed.fileno()))
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "cri", "HOME": "/root"}


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        yield sock


def test_the_socket_is_taken_over_and_its_variables_are_removed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = passed(monkeypatch, listener)

    with listening_socket(environ) as taken:
        assert taken.getsockname() == listener.getsockname()
        assert not taken.get_inheritable()

    assert environ == {"HOME": "/root"}


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="started-by-hand"),
        pytest.param({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, id="meant-for-another"),
        pytest.param({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}, id="two-sockets"),
    ],
)
def test_exactly_one_socket_must_be_passed_to_this_process(environ: dict[str, str]) -> None:
    with pytest.raises(FailedPrecondition, match="exactly one socket"):
        listening_socket(environ)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param((socket.AF_UNIX, socket.SOCK_STREAM), id="not-listening"),
        pytest.param((socket.AF_UNIX, socket.SOCK_DGRAM), id="datagram"),
        pytest.param((socket.AF_INET, socket.SOCK_STREAM), id="tcp"),
    ],
)
def test_another_kind_of_socket_is_refused(
    kind: tuple[socket.AddressFamily, socket.SocketKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(*kind) as wrong:
        environ = passed(monkeypatch, wrong)

        with pytest.raises(FailedPrecondition, match="not a listening unix stream socket"):
            listening_socket(environ)

    os.close(activation._FIRST_FD)


def test_a_descriptor_that_is_not_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(activation, "_FIRST_FD", file.fileno())

        with pytest.raises(FailedPrecondition, match="serve the CRI at fd://"):
            listening_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_systemd_is_notified(tmp_path: Path, abstract: bool) -> None:
    name = f"@pydockershim-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)

        notify("READY=1", {"NOTIFY_SOCKET": name})

        assert systemd.recv(100) == b"READY=1"


def test_without_a_free_descriptor_notify_does_nothing(tmp_path: Path) -> None:
    with no_descriptor_free():
        notify("WATCHDOG=1", {"NOTIFY_SOCKET": str(tmp_path / "notify")})


def test_without_systemd_notify_does_nothing() -> None:
    notify("READY=1", {})


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "120000000"}, 120.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval_is_read_from_the_environment(variables: dict[str, str], seconds: float | None) -> None:
    environ = {**variables, "HOME": "/root"}

    assert activation.watchdog_seconds(environ) == seconds
    assert environ == {"HOME": "/root"}
