import json
import socket
import sys
import threading
from pathlib import Path

import pytest

from integration.node.commands import NodeError
from integration.node.engine import Engine, answers, program


@pytest.fixture
def binaries(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "sbin"
    directory.mkdir()
    (directory / "dockerd").touch()
    return [tmp_path / "missing", directory]


def test_an_engine_writes_only_below_its_home(tmp_path: Path, binaries: list[Path]) -> None:
    home = tmp_path / "home"
    engine = Engine(
        "28",
        binaries=binaries,
        home=home,
        cgroup_driver="cgroupfs",
        cgroup_parent="/run",
        settings={"features": {"containerd-snapshotter": True}},
    )
    settings = json.loads((home / "daemon.json").read_text())

    assert settings["hosts"] == [engine.url] == [f"unix://{home}/docker.sock"]
    assert all(settings[key].startswith(str(home)) for key in ("data-root", "exec-root", "pidfile"))
    assert settings["cgroup-parent"] == "/run"
    assert settings["features"] == {"containerd-snapshotter": True}


def test_the_first_program_with_a_name_is_used(binaries: list[Path]) -> None:
    assert program("dockerd", binaries) == binaries[1] / "dockerd"


def test_a_missing_program_is_an_error_that_names_the_directories(binaries: list[Path]) -> None:
    with pytest.raises(NodeError, match=f"find containerd: not in {binaries[0]}, {binaries[1]}"):
        program("containerd", binaries)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [(b"HTTP/1.1 200 OK\r\n\r\nOK", True), (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False), (b"", False)],
    ids=["ok", "unavailable", "closed"],
)
def test_an_engine_answers_with_200(reply: bytes, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=answer_once, args=(server, reply))
        thread.start()
        assert answers(path) is expected
        thread.join()


def answer_once(server: socket.socket, reply: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(reply)


@pytest.mark.parametrize("leftover", [True, False], ids=["leftover socket", "no socket"])
def test_an_engine_without_a_listener_does_not_answer(leftover: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    if leftover:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))

    assert answers(path) is False


SLOW_AT_FIRST = """#!{python}
import pathlib, signal, socket
ran = pathlib.Path({home!r}, "ran")
if not ran.exists():
    ran.touch()
    raise SystemExit("failed to start containerd: {reason}")
listener = socket.socket(socket.AF_UNIX)
listener.bind({home!r} + "/docker.sock")
listener.listen()
while True:
    client, _ = listener.accept()
    client.recv(1024)
    client.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nOK")
    client.close()
"""


def engine_whose_first_start_fails(tmp_path: Path, reason: str) -> Engine:
    home, program = tmp_path / "home", tmp_path / "dockerd"
    program.write_text(SLOW_AT_FIRST.format(python=sys.executable, home=str(home), reason=reason))
    program.chmod(0o755)
    return Engine("28", binaries=[tmp_path], home=home, cgroup_driver="cgroupfs", cgroup_parent="/run")


def test_a_dockerd_that_gave_up_on_a_slow_containerd_is_restarted(tmp_path: Path) -> None:
    engine = engine_whose_first_start_fails(tmp_path, "timeout waiting for containerd to start")
    engine.start()
    try:
        assert answers(engine.socket)
    finally:
        engine.stop()


def test_a_dockerd_that_exits_for_another_reason_is_not_restarted(tmp_path: Path) -> None:
    engine = engine_whose_first_start_fails(tmp_path, "address already in use")
    with pytest.raises(NodeError, match="address already in use"):
        engine.start()
    assert not engine.daemon.running
