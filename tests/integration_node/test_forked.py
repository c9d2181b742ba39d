import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node.commands import NodeError
from integration.node.processes import helper_of
from integration.server import Server
from integration.waiting import wait_until


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


def test_it_is_a_process_of_its_own_with_its_log_and_environment(
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


def test_it_is_stopped_also_when_frozen_and_starts_again(server: Server) -> None:
    server.start()
    server.daemon.signal(signal.SIGSTOP)
    server.stop()
    assert not server.daemon.running
    assert not server.socket.exists()

    server.start()
    server.kill()
    assert not server.daemon.running
    assert server.socket.exists()


def test_one_that_ends_at_once_is_reported_with_its_log(server: Server, tmp_path: Path) -> None:
    tmp_path.joinpath("root").write_text("no directory")

    with pytest.raises(NodeError, match=r"it ended\n(?s:.)*root"):
        server.start()
