"""`install --docker` on a real dockerd, with a stand-in for systemctl: the checks, and the restored files."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import ANY

import pytest

from integration.conftest import NodeDirs, Served, make_engine
from integration.cri import connected
from integration.networks import BRIDGE, bridge, conflist
from integration.node.engine import Engine, answers, own_link, program
from integration.node.host import SOCKET
from integration.node.images import BUSYBOX, Image, busybox_image, load
from integration.node.isolation import Node, new_home
from integration.node.mounts import unmount_all
from integration.pods.kubelet import Kubelet
from integration.pods.user_namespaces import FIRST, SIZE, features, pod_of, started
from integration.server import Server
from integration.waiting import wait_until
from shim.config.model import Config
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.doctor.docker import check_engine_at
from shim.doctor.findings import Finding
from shim.doctor.units import BOOTED
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.install.docker import DockerSetup
from shim.install.install import Installation, Options
from shim.install.layout import OCI_RUNTIME
from shim.install.node import Node as InstallNode
from shim.install.record import DockerChange
from shim.install.steps import run_steps
from shim.install.systemd import Systemd
from shim.install.uninstall import Removal

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
    pid_file: Path

    def install(self) -> list[str]:
        """Change Docker's settings; return the announcements."""
        said: list[str] = []
        run_steps(list(self.setup.steps()), announce=said.append, dry=False)
        return said

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text())

    @property
    def answers(self) -> bool:
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
        yield Unit(setup, engine, notes, Path(f"{tmp_path / 'unit'}.pid"))
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

    assert settings() == {"live-restore": True, "runtimes": ANY}
    assert unit.engine.api.info()["LiveRestoreEnabled"]


@pytest.fixture
def booted(unit: Unit) -> Iterator[None]:
    """Make this machine look like a systemd node: the stand-in is used, and Docker answers at its default socket."""
    BOOTED.mkdir(parents=True)
    SOCKET.symlink_to(unit.engine.socket)
    yield
    SOCKET.unlink()
    BOOTED.rmdir()


def installed(unit: Unit) -> None:
    options = Options(docker=True, start=False)
    installation = Installation(options=options, command="/usr/bin/pydockershim", environ=unit.setup.environ)
    run_steps(installation.steps(), announce=print, dry=False)


def uninstalled(unit: Unit) -> None:
    removal = Removal(root=Path("/"), force=False, config=Config(), environ=unit.setup.environ)
    run_steps(removal.steps(), announce=print, dry=False)


@contextmanager
def served_by(engine: Engine, dirs: NodeDirs) -> Iterator[Served]:
    """Run a server; the unit starts and stops its Docker."""
    flags = {
        "docker-endpoint": engine.url,
        "root-directory": dirs.state,
        "netns-directory": dirs.netns,
        "cni-conf-dir": dirs.cni_conf,
        "cni-bin-dir": dirs.cni_bin,
        "cni-cache-dir": dirs.cni_cache,
    }
    server = Server(flags, socket=dirs.socket, log=dirs.state.with_name("server.log"))
    server.start()
    try:
        with connected(dirs.socket) as cri:
            served = Served(server, cri, engine, dirs)
            wait_until(served.has_network)
            yield served
    finally:
        server.stop()
        unmount_all(dirs.netns)


@pytest.mark.usefixtures("booted")
@pytest.mark.parametrize("unit", [CGROUPFS], indirect=True)
def test_a_pod_has_a_user_namespace_between_install_and_uninstall(
    unit: Unit, node: Node, pause_image: Image, node_dirs: NodeDirs
) -> None:
    dockerd = unit.pid
    installed(unit)
    assert unit.engine.api.info()["Runtimes"][ORDERED_RUNTIME]["path"] == str(OCI_RUNTIME)

    for image in (pause_image, busybox_image(node.busybox)):
        load(unit.engine.api, image)
    (node_dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(node_dirs.cni_leases)))
    with own_link(BRIDGE), served_by(unit.engine, node_dirs) as served:
        kubelet = Kubelet(served.cri, BUSYBOX)
        wait_until(lambda: features(served.cri).user_namespaces, seconds=10)
        config = Config(docker_endpoint=unit.engine.url, root_directory=node_dirs.state)
        findings = check_engine_at(config, os.environ)
        assert Finding("ok", "user namespace", "pods can have their own") in findings
        shown = kubelet.inside(started(kubelet, pod_of(kubelet)), "cat /proc/self/uid_map")
        kubelet.remove_all()
    assert shown.split() == ["0", str(FIRST), str(SIZE)]

    uninstalled(unit)
    assert ORDERED_RUNTIME not in unit.engine.api.info()["Runtimes"]
    assert not FILE.exists()
    assert not OCI_RUNTIME.exists()
    assert unit.pid == dockerd


@pytest.mark.usefixtures("booted")
@pytest.mark.parametrize("unit", [CGROUPFS], indirect=True)
def test_the_runtime_stays_if_it_is_the_default(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, dockerd would not start again."""
    monkeypatch.setattr("shim.install.docker._RELOAD_SECONDS", 1.0)
    installed(unit)
    text = json.dumps({**json.loads(FILE.read_text()), "default-runtime": ORDERED_RUNTIME})
    FILE.write_text(text)
    unit.setup.systemd.run("reload", "docker.service")
    wait_until(lambda: unit.engine.api.info()["DefaultRuntime"] == ORDERED_RUNTIME, 10)

    with pytest.raises(FailedPrecondition, match=r"does not drop the runtime pydockershim, so .* was restored"):
        uninstalled(unit)

    assert FILE.read_text() == text
    assert OCI_RUNTIME.exists()

    FILE.write_text(text.replace(f'"default-runtime": "{ORDERED_RUNTIME}"', '"default-runtime": "runc"'))
    uninstalled(unit)
    assert not OCI_RUNTIME.exists()


@pytest.mark.parametrize("unit", [CGROUPFS], indirect=True)
def test_a_docker_in_a_swarm_gets_no_live_restore_and_starts_again(unit: Unit) -> None:
    unit.engine.api.init_swarm(advertise_addr="127.0.0.1", listen_addr="127.0.0.1:23777")

    remark, *_ = unit.install()

    assert remark.startswith("to do: this Docker is in a swarm, where dockerd does not start with live-restore")
    assert settings() == {"runtimes": ANY}
    assert ORDERED_RUNTIME in unit.engine.api.info()["Runtimes"]
    unit.setup.systemd.run("restart", "docker.service")
    assert unit.answers


@pytest.mark.parametrize("unit", [(*CGROUPFS, "--live-restore=false")], indirect=True)
def test_a_setting_of_the_command_line_is_not_written(unit: Unit) -> None:
    remark, *_ = unit.install()

    assert "--live-restore=false: remove that" in remark
    assert settings() == {"runtimes": ANY}


@pytest.mark.parametrize("unit", [(*CGROUPFS, "--log-level=info")], indirect=True)
def test_a_file_that_contradicts_the_command_line_is_reported_before_any_change(unit: Unit) -> None:
    if unit.engine.name == "20.10":
        pytest.skip("its dockerd cannot check a file")
    FILE.write_text('{"log-level": "warn"}')

    with pytest.raises(InvalidArgument, match=r"not start with live-restore, runtimes in .*daemon\.json: .*log-level"):
        unit.install()

    assert settings() == {"log-level": "warn"}
    assert unit.answers


@pytest.mark.parametrize("unit", [("--cgroup-parent=/others",)], indirect=True)
def test_the_systemd_driver_is_not_set_with_a_parent_that_is_no_slice(unit: Unit) -> None:
    remark, *_ = unit.install()

    assert "cgroup-parent /others of dockerd is not a slice" in remark
    unit.setup.systemd.run("restart", "docker.service")
    assert unit.answers


@pytest.mark.parametrize("unit", [("--cgroup-parent=/others",)], indirect=True)
@pytest.mark.parametrize("before", [None, '{ "debug":false }'])
def test_the_file_is_restored_if_docker_does_not_start(
    unit: Unit, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks are disabled, as if the reason were unknown to them."""
    monkeypatch.setattr("shim.install.daemon_json.hindrances", lambda *_, **__: {})
    if before is not None:
        FILE.write_text(before)

    with pytest.raises(FailedPrecondition, match=r"was restored, and Docker runs again: .*should be a valid slice"):
        unit.install()

    assert (FILE.read_text() if FILE.exists() else None) == before
    assert unit.answers
    assert unit.notes[-1] is None


@pytest.mark.parametrize("unit", [(f"--config-file={OTHER_FILE}", *CGROUPFS)], indirect=True)
def test_a_file_at_another_path_is_reported(unit: Unit) -> None:
    with pytest.raises(FailedPrecondition, match=r"reads /etc/docker/other\.json \(--config-file\)"):
        unit.install()
