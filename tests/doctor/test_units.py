from pathlib import Path

import pytest

from shim.doctor import units
from shim.doctor.units import Unit, listens_by_file, units_from_show, units_of_systemd

# What systemd 252 prints of a unit that has failed, and of the socket beside it.
SHOWN = """\
Result=exit-code
NRestarts=0
ExecMainCode=1
ExecMainStatus=2
LoadState=loaded
ActiveState=failed
SubState=failed
UnitFileState=enabled

Listen=/run/cri-dockerd.sock (Stream)
Listen=/run/other.sock (Stream)
LoadState=loaded
ActiveState=active
SubState=listening
UnitFileState=enabled
"""

WORKS = (
    SHOWN.replace("ExecMainStatus=2", "ExecMainStatus=0").replace("=failed", "=active", 1).replace("failed", "running")
)


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose programs are in `tmp_path`."""
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_the_words_of_systemctl_show() -> None:
    service, socket = units_from_show(SHOWN)

    assert service == Unit(
        load="loaded", active="failed", sub="failed", file="enabled", result="exit-code", status=2, restarts=0
    )
    assert service.is_installed
    assert not service.runs
    assert (socket.active, socket.listens) == ("active", "/run/cri-dockerd.sock")


def test_a_unit_that_waits_for_its_next_start_does_not_run() -> None:
    assert not Unit(load="loaded", active="activating", sub="auto-restart").runs
    assert Unit(load="loaded", active="activating", sub="start").runs


@pytest.mark.parametrize("text", ["", "\n", "LoadState=not-found\n", "a\n\nb\n\nc\n"])
def test_what_says_nothing_of_a_unit(text: str) -> None:
    assert all(not unit.is_installed for unit in units_from_show(text))


def test_systemd_is_asked_about_both(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "shown").write_text(WORKS)
    program(tmp_path, "systemctl", f'echo "$@" >{tmp_path}/asked; cat {tmp_path}/shown')

    found = units_of_systemd(environ, booted=tmp_path)

    assert (found.service.active, found.socket.listens, found.trouble) == ("active", "/run/cri-dockerd.sock", "")
    assert (tmp_path / "asked").read_text().startswith("--no-pager show pydockershim.service pydockershim.socket ")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("pydockershim: error: file /etc/a.toml: there is no setting 'x'", "file /etc/a.toml: there is no setting 'x'"),
        ('{"level": "error", "event": "stopping", "error": "no room"}', "stopping: no room"),
        ('{"level": "info", "event": "serving"}', ""),
        ("[1]", ""),
        ("", ""),
    ],
)
def test_the_journal_knows_why_it_failed(tmp_path: Path, environ: dict[str, str], line: str, cause: str) -> None:
    (tmp_path / "shown").write_text(SHOWN)
    (tmp_path / "journal").write_text(f"Started.\n{line}\nMain process exited\n")
    program(tmp_path, "systemctl", f"cat {tmp_path}/shown")
    program(tmp_path, "journalctl", f"cat {tmp_path}/journal")

    assert units_of_systemd(environ, booted=tmp_path).cause == cause


def test_a_systemd_that_hangs(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_SECONDS", 0.2)
    program(tmp_path, "systemctl", "exec sleep 60")

    assert "not finished within 0.2 s" in units_of_systemd(environ, booted=tmp_path).trouble


def test_a_systemd_that_refuses(tmp_path: Path, environ: dict[str, str]) -> None:
    program(tmp_path, "systemctl", "echo Failed to connect to bus >&2; exit 1")

    assert units_of_systemd(environ, booted=tmp_path).trouble == "systemctl show: Failed to connect to bus"


def test_a_machine_without_systemd(tmp_path: Path) -> None:
    found = units_of_systemd({}, booted=tmp_path / "absent")

    assert (found.booted, found.trouble) == (False, "this machine does not run systemd")
    assert "systemctl is not on the PATH" in units_of_systemd({"PATH": "/nowhere"}, booted=tmp_path).trouble


def test_the_first_file_of_the_socket_unit_counts(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("absent", "etc", "lib")]
    for directory in directories[1:]:
        directory.mkdir()
        text = f"[Unit]\nAfter=a\nAfter=b\n[Socket]\nListenStream=/run/{directory.name}.sock\n"
        (directory / units.SOCKET).write_text(text)

    assert listens_by_file(directories) == "/run/etc.sock"
    assert listens_by_file(directories[:1]) == ""


def test_the_socket_unit_of_this_project_can_be_read() -> None:
    packaged = Path(__file__).parents[2] / "packaging/systemd"

    assert listens_by_file([packaged]) == "/run/cri-dockerd.sock"


def test_a_first_start_is_waited_for(tmp_path: Path, environ: dict[str, str]) -> None:
    """systemctl says that the unit is being started, and the next time that it has failed."""
    booted = tmp_path / "booted"
    booted.mkdir()
    starting = SHOWN.replace("ActiveState=failed", "ActiveState=activating").replace(
        "SubState=failed", "SubState=start"
    )
    (tmp_path / "1").write_text(starting)
    (tmp_path / "2").write_text(SHOWN)
    program(tmp_path, "systemctl", f"cat {tmp_path}/1; mv {tmp_path}/2 {tmp_path}/1 2>/dev/null || true")
    program(tmp_path, "journalctl", "exit 0")

    assert units_of_systemd(environ, booted=booted).service.active == "failed"
