"""`install --docker` beside a real dockerd, whose unit a stand-in for systemctl runs: what it checks and puts back."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.conftest import make_engine
from integration.node.engine import Engine, answers, program
from integration.node.isolation import Node, new_home
from integration.waiting import wait_until
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.install.docker import DockerSetup
from shim.install.node import Node as InstallNode
from shim.install.record import DockerChange
from shim.install.steps import run_steps
from shim.install.systemd import Systemd

FILE = Path("/etc/docker/daemon.json")
OTHER_FILE = FILE.with_name("other.json")
SYSTEMCTL = """\
#!{python}
import json, os, pathlib, signal, subprocess, sys, time

unit = json.loads(pathlib.Path({unit!r}).read_text())
note = pathlib.Path({unit!r} + ".pid")
pid = int(note.read_text()) if note.exists() else 0

def runs():
    try:
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

match sys.argv[3]:
    case "show":
        print(f"MainPID={{pid}}")
        print("ExecStart={{ path=x ; argv[]=" + " ".join(unit["words"]) + " ; ignore_errors=no ; }}")
    case "is-active":
        sys.exit(0 if pid and runs() else 3)
    case "reload":
        os.kill(pid, signal.SIGHUP)
    case "restart":
        if pid and runs():
            os.kill(pid, signal.SIGTERM)
            while runs():
                time.sleep(0.05)
        with open(unit["log"], "ab") as log:
            child = subprocess.Popen(unit["words"], stdout=log, stderr=log, env=unit["env"], start_new_session=True)
        note.write_text(str(child.pid))
        while child.poll() is None:
            ping = subprocess.run(["curl", "-sf", "--unix-socket", unit["socket"], "http://d/_ping"], stdout=-3)
            if ping.returncode == 0:
                sys.exit(0)
            time.sleep(0.1)
        print("Job for docker.service failed", file=sys.stderr)
        sys.exit(1)
"""
JOURNALCTL = "#!/bin/sh\ntail -n 1 {log}\n"
CGROUPFS = ("--exec-opt", "native.cgroupdriver=cgroupfs")


@dataclass
class Unit:
    """Docker's unit, and an installation that changes its settings."""

    setup: DockerSetup
    engine: Engine
    notes: list[DockerChange | None]

    def install(self) -> list[str]:
        """Change Docker's settings; what was announced."""
        said: list[str] = []
        run_steps(list(self.setup.steps()), announce=said.append, dry=False)
        return said

    @property
    def answers(self) -> bool:
        """Whether Docker does."""
        return answers(self.engine.socket)


@pytest.fixture
def unit(request: pytest.FixtureRequest, engine_name: str, node: Node, tmp_path: Path) -> Iterator[Unit]:
    """Run dockerd as a unit, with the flags of the test's parameter."""
    engine = make_engine(node, engine_name, variant="u")
    home = engine.home
    places = [f"--data-root={home / 'data'}", f"--exec-root={home / 'exec'}", f"--pidfile={home / 'dockerd.pid'}"]
    network = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--userland-proxy=false"]
    words = [str(program("dockerd", engine.binaries)), "-H", engine.url, *places, *network, *request.param]
    description = {"words": words, "env": engine.daemon.env, "socket": str(engine.socket), "log": str(engine.log)}
    (tmp_path / "unit").write_text(json.dumps(description))
    programs = new_home("programs")
    programs.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (programs / name).write_text(text.format(python=sys.executable, unit=str(tmp_path / "unit"), log=engine.log))
        (programs / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{programs}:{engine.daemon.env['PATH']}"}
    FILE.unlink(missing_ok=True)
    OTHER_FILE.parent.mkdir(exist_ok=True)
    OTHER_FILE.write_text("{}")
    there = InstallNode(Path("/"))
    systemd = Systemd(there, environ, booted=tmp_path)
    notes: list[DockerChange | None] = []
    setup = DockerSetup(
        node=there, systemd=systemd, environ=environ, earlier=None, note=notes.append, endpoint=engine.url
    )
    setup.systemd.run("restart", "docker.service")
    try:
        yield Unit(setup, engine, notes)
    finally:
        FILE.unlink(missing_ok=True)
        pid = int(Path(f"{tmp_path / 'unit'}.pid").read_text())
        if Path("/proc", str(pid)).exists():
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not Path("/proc", str(pid)).exists(), 30)


def settings() -> object:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("unit", [CGROUPFS], indirect=True)
def test_live_restore_is_on_after_a_reload(unit: Unit) -> None:
    assert unit.install()[-1] == "run   systemctl reload docker.service"

    assert settings() == {"live-restore": True}
    assert unit.engine.api.info()["LiveRestoreEnabled"]


@pytest.mark.parametrize("unit", [CGROUPFS], indirect=True)
def test_a_docker_in_a_swarm_gets_no_live_restore_and_starts_again(unit: Unit) -> None:
    unit.engine.api.init_swarm(advertise_addr="127.0.0.1", listen_addr="127.0.0.1:23777")

    (remark,) = unit.install()

    assert remark.startswith("to do: this Docker is in a swarm, and dockerd does not start with live-restore then")
    assert not FILE.exists()
    unit.setup.systemd.run("restart", "docker.service")
    assert unit.answers


@pytest.mark.parametrize("unit", [(*CGROUPFS, "--live-restore=false")], indirect=True)
def test_a_setting_that_the_command_line_has_is_not_written(unit: Unit) -> None:
    (remark,) = unit.install()

    assert "--live-restore=false: take that away" in remark
    assert not FILE.exists()


@pytest.mark.parametrize("unit", [(*CGROUPFS, "--log-level=info")], indirect=True)
def test_a_file_that_contradicts_the_command_line_is_named_before_anything_is_done(unit: Unit) -> None:
    if unit.engine.name == "20.10":
        pytest.skip("its dockerd cannot check a file")
    FILE.write_text('{"log-level": "warn"}')

    with pytest.raises(InvalidArgument, match=r"would not start with live-restore in .*daemon\.json: .*log-level"):
        unit.install()

    assert settings() == {"log-level": "warn"}
    assert unit.answers


@pytest.mark.parametrize("unit", [("--cgroup-parent=/others",)], indirect=True)
def test_the_driver_of_systemd_is_not_set_beside_a_parent_that_is_no_slice(unit: Unit) -> None:
    remark, *_ = unit.install()

    assert "cgroup-parent /others of dockerd is no slice" in remark
    unit.setup.systemd.run("restart", "docker.service")
    assert unit.answers


@pytest.mark.parametrize("unit", [("--cgroup-parent=/others",)], indirect=True)
@pytest.mark.parametrize("before", [None, '{ "debug":false }'])
def test_the_file_is_put_back_when_docker_does_not_come_up(
    unit: Unit, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a reason that is not known here: the checks are taken away."""
    monkeypatch.setattr("shim.install.daemon_json.hindrances", lambda *_, **__: {})
    if before is not None:
        FILE.write_text(before)

    with pytest.raises(FailedPrecondition, match=r"as it was, and Docker runs again: .*should be a valid slice"):
        unit.install()

    assert (FILE.read_text() if FILE.exists() else None) == before
    assert unit.answers
    assert unit.notes[-1] is None


@pytest.mark.parametrize("unit", [(f"--config-file={OTHER_FILE}", *CGROUPFS)], indirect=True)
def test_a_file_in_another_place_is_named(unit: Unit) -> None:
    with pytest.raises(FailedPrecondition, match=r"reads /etc/docker/other\.json \(--config-file\)"):
        unit.install()
