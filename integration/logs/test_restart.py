"""The log process and the server are killed at any moment, and every line is there once and in order."""

import os
import random
import signal
import threading
from pathlib import Path

from integration.logs.conftest import EXITED, Logged
from integration.logs.crilog import numbers, read, with_rotated
from integration.logs.test_rotation import COUNT, LINES
from integration.waiting import wait_until

_never = threading.Event()


def pause(dice: random.Random) -> None:
    """Let the container write on for a while; nothing tells a good moment for a crash."""
    _never.wait(dice.uniform(0.0, 0.4))


def wait_another(own: Logged, worker: int) -> None:
    wait_until(lambda: own.stats()["pid"] not in (0, worker))


def holds(path: Path, content: bytes) -> bool:
    return path.exists() and content in path.read_bytes()


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_a_log_process_that_is_killed_loses_nothing(own: Logged) -> None:
    dice = random.Random(4)
    container_id, path = own.run(COUNT.format(lines=LINES))
    for _ in range(5):
        pause(dice)
        worker = own.worker()
        os.kill(worker, signal.SIGKILL)
        wait_another(own, worker)
    own.wait_exited(container_id, 40)

    assert numbers(read(path)) == list(range(LINES))


def test_a_server_that_is_killed_loses_nothing(own: Logged) -> None:
    dice = random.Random(5)
    container_id, path = own.run(COUNT.format(lines=LINES))
    for number in range(4):
        pause(dice)
        own.crash()
        pause(dice)
        own.served.server.start()
        if not exited(own, container_id):
            own.rotate(container_id, path, number)
    own.wait_exited(container_id, 40)

    assert numbers(with_rotated(path)) == list(range(LINES))


def test_what_ends_while_the_server_is_down_is_complete_when_it_is_back(own: Logged) -> None:
    container_id, path = own.run("seq 0 99; while [ ! -e /go ]; do sleep 0.05; done; seq 100 1000")
    wait_until(lambda: len(read(path)) == 100)
    own.crash()
    api = own.served.engine.api
    api.exec_start(api.exec_create(container_id, ["touch", "/go"])["Id"])
    api.wait(container_id)
    with path.open("ab") as log:
        log.write(b"2026-01-01T00:00:00.0000")  # what a crash in the midst of a write leaves
    own.served.server.start()

    assert exited(own, container_id)
    assert numbers(read(path)) == list(range(1001))


def test_a_kubelet_that_died_after_its_rename_loses_nothing(own: Logged) -> None:
    container_id, path = own.run(COUNT.format(lines=3000))
    wait_until(lambda: size(path))
    own.crash()
    path.rename(path.with_name("0.log.1"))
    own.served.server.start()
    own.wait_exited(container_id)

    assert numbers(with_rotated(path)) == list(range(3000))


def test_a_reopen_whose_answer_was_lost_loses_nothing(own: Logged) -> None:
    """The kubelet puts the old file back, over the new one."""
    container_id, path = own.run(COUNT.format(lines=5000))
    wait_until(lambda: size(path))
    own.rotate(container_id, path, 1)
    wait_until(lambda: size(path))
    path.with_name("0.log.0001").rename(path)
    own.wait_exited(container_id)

    assert list(path.parent.iterdir()) == [path]
    assert numbers(read(path)) == list(range(5000))


def test_what_docker_dropped_meanwhile_is_told(own: Logged) -> None:
    """Docker keeps four times 256 KiB, and 40,000 lines are 3 MiB."""
    container_id, path = own.run("echo -1; while [ ! -e /go ]; do sleep 0.05; done; seq 0 40000; echo end; sleep 600")
    wait_until(lambda: read(path))
    own.crash()
    api = own.served.engine.api
    api.exec_start(api.exec_create(container_id, ["touch", "/go"])["Id"])
    docker_log = own.docker_log(container_id)
    wait_until(lambda: holds(docker_log, b'"end\\n"'))
    own.served.server.start()
    wait_until(lambda: read(path)[-1].content == b"end")
    lines = numbers(read(path)[:-1])

    assert lines[0] == -1
    assert lines[1] > 1000
    assert lines[1:] == list(range(lines[1], 40001))
    told = [line for line in own.served.server.daemon.log.read_text().splitlines() if "docker has dropped" in line]
    assert len(told) == 1
    assert '"missing_seconds":' in told[0]


def exited(own: Logged, container_id: str) -> bool:
    return own.served.cri.container_status(container_id).state == EXITED
