import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node.commands import NodeError
from integration.node.processes import helper_of
from integration.server import Server
from integration.waiting import wait_until

SECONDS = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = {
        "docker-endpoint": f"unix://{tmp_path}/no-docker.sock",
        "root-directory": tmp_path / "root",
        "cni-conf-dir": tmp_path / "cni",
        "log-level": "debug",
    }
    environ = {"HTTPS_PROXY": "http://proxy.test"}
    made = Server(settings, socket=tmp_path / "cri.sock", log=tmp_path / "log", environ=environ, forked=True)
    yield made
    made.kill()


def test_a_forked_server_is_a_process_with_its_log_and_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    server.stop()
    monkeypatch.setenv("SET_LATER", "for others")
    server.start()

    pid = server.daemon.pid
    assert os.getsid(pid) == pid
    assert "serving" in server.daemon.log_tail()
    assert {Path(f"/proc/{pid}/fd/{number}").readlink() for number in (1, 2)} == {server.daemon.log}
    helper = wait_until(lambda: helper_of(pid))
    passed_on = Path(f"/proc/{helper}/environ").read_bytes().split(b"\0")
    assert b"HTTPS_PROXY=http://proxy.test" in passed_on
    assert b"SET_LATER=for others" not in passed_on


def test_the_parent_of_a_forked_server_has_loaded_the_program(server: Server) -> None:
    server.start()

    parent = int(Path(f"/proc/{server.daemon.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid()
    assert "grpc/_cython" in Path(f"/proc/{parent}/maps").read_text()


def test_a_run_ends_although_a_forked_server_is_stopped(tmp_path: Path) -> None:
    script = f"""
import signal
from pathlib import Path
from integration.server import Server
made = Server({{"root-directory": "{tmp_path}/root", "docker-endpoint": "unix://{tmp_path}/none.sock"}},
    socket=Path("{tmp_path}/cri.sock"), log=Path("{tmp_path}/log"), forked=True)
made.start()
made.daemon.signal(signal.SIGSTOP)
print(made.daemon.pid)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=SECONDS)
    assert not Path(f"/proc/{int(ended.stdout)}").exists()


def test_a_server_with_another_program_is_not_forked(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="neither a program nor a network namespace"):
        Server({}, socket=tmp_path / "cri.sock", log=tmp_path / "log", program=("pydockershim",), forked=True)


def test_a_frozen_forked_server_is_stopped_and_can_be_restarted(server: Server) -> None:
    server.start()
    server.daemon.signal(signal.SIGSTOP)
    server.stop()
    assert not server.daemon.running
    assert not server.socket.exists()

    server.start()
    server.kill()
    assert not server.daemon.running
    assert server.socket.exists()


def test_a_forked_server_that_exits_at_once_is_reported_with_its_log(server: Server, tmp_path: Path) -> None:
    tmp_path.joinpath("root").write_text("no directory")

    with pytest.raises(NodeError, match=r"it ended\n(?s:.)*root"):
        server.start()
