import os
import socket
from pathlib import Path

from shim.config.model import Config
from shim.doctor.nri import check_nri
from shim.nri.listener import Listener
from shim.nri.plugins import Plugins, Timeouts


def found(path: Path, **settings: bool) -> list[tuple[str, str]]:
    config = Config(nri_socket_path=path, **settings)  # type: ignore[arg-type] # switches alone
    return [(finding.level, finding.text) for finding in check_nri(config)]


def test_a_socket_that_nobody_has_is_fine(tmp_path: Path) -> None:
    [(level, text)] = found(tmp_path / "nri.sock")
    assert level == "ok"
    assert "once the server runs" in text


def test_another_program_on_the_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    with Listener(path, Plugins(Timeouts(registration=1, request=1))).serving():
        [(_, text)] = found(path)
    assert f"(process {os.getpid()})" in text


def test_what_cannot_be_asked_is_said(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        [(level, text)] = found(path)
    assert level == "warn"
    assert str(path) in text


def test_nothing_is_said_where_it_is_off(tmp_path: Path) -> None:
    assert found(tmp_path, nri=False) == found(tmp_path, nri_disable_connections=True) == []
