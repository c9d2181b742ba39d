"""Kills of the log process and the server at any moment: the log has every line once and in order."""

import os
import random
import signal
import threading
from pathlib import Path

import grpc

from integration.logs.conftest import EXITED, Logged, on_drivers
from integration.logs.crilog import COUNT, LINES, numbers, output, read, so_far, with_rotated
from integration.waiting import wait_until

_never = threading.Event()


def pause(dice: random.Random) -> None:
    """Let the container write for a random time; no event marks a good moment for a crash."""
    _never.wait(dice.uniform(0.0, 0.4))


def wait_another(own: Logged, worker: int) -> None:
    wait_until(lambda: own.stats()["pid"] not in (0, worker))


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@on_drivers("json-file", "local")
def test_a_killed_log_process_loses_no_line(own: Logged) -> None:
    dice = random.Random(4)
    container_id, path = own.run(COUNT.format(lines=LINES))
    for _ in range(5):
        pause(dice)
        worker = own.worker()
        os.kill(worker, signal.SIGKILL)
        wait_another(own, worker)
    own.wait_exited(container_id)

    assert numbers(read(path)) == list(range(LINES))


def test_a_killed_server_loses_no_line(own: Logged) -> None:
    dice = random.Random(5)
    container_id, path = own.run(COUNT.format(lines=LINES))
    for number in range(4):
        pause(dice)
        own.crash()
        pause(dice)
        own.served.server.start()
        if not exited(own, container_id):
            rotate_unless_ended(own, container_id, path, number)
    own.wait_exited(container_id)

    assert numbers(with_rotated(path)) == list(range(LINES))


def rotate_unless_ended(own: Logged, container_id: str, path: Path, number: int) -> None:
    """Rotate a log; if its container exits meanwhile, rename the file back, as a kubelet does."""
    try:
        own.rotate(container_id, path, number)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        own.rotated(path, number).rename(path)
        own.wait_exited(container_id)


@on_drivers("json-file", "local")
def test_logs_of_containers_that_exit_while_the_server_is_down_are_completed(own: Logged) -> None:
    container_id, path = own.run("seq 0 99; while [ ! -e /go ]; do sleep 0.05; done; seq 100 1000")
    wait_until(lambda: len(so_far(path)) == 100)
    own.crash_with_logs()
    api = own.served.engine.api
    api.exec_start(api.exec_create(container_id, ["touch", "/go"])["Id"], detach=True)
    api.wait(container_id)
    with path.open("ab") as log:
        log.write(b"2026-01-01T00:00:00.0000")  # a record cut by a crash
    own.served.server.start()

    assert exited(own, container_id)
    assert numbers(read(path)) == list(range(1001))


def test_a_kubelet_crash_between_rename_and_reopen_loses_no_line(own: Logged) -> None:
    container_id, path = own.run(COUNT.format(lines=3000))
    wait_until(lambda: size(path))
    own.crash()
    path.rename(path.with_name("0.log.1"))
    own.served.server.start()
    own.wait_exited(container_id)

    assert numbers(with_rotated(path)) == list(range(3000))


def test_a_reopen_whose_answer_is_lost_loses_no_line(own: Logged) -> None:
    """The kubelet renames the old file back, over the new file."""
    container_id, path = own.run(COUNT.format(lines=5000))
    wait_until(lambda: size(path))
    own.rotate(container_id, path, 1)
    wait_until(lambda: size(path))
    path.with_name("0.log.0001").rename(path)
    own.wait_exited(container_id)

    assert list(path.parent.iterdir()) == [path]
    assert numbers(read(path)) == list(range(5000))


@on_drivers("json-file", "local")
def test_output_that_docker_dropped_meanwhile_is_reported(own: Logged) -> None:
    """Docker keeps about 12,000 of 40,000 lines."""
    container_id, path = own.run("echo -1; while [ ! -e /go ]; do sleep 0.05; done; seq 0 40000; echo end; sleep 600")
    wait_until(lambda: size(path) and so_far(path))
    own.crash_with_logs()  # it would copy the lines before Docker drops them
    api = own.served.engine.api
    api.exec_start(api.exec_create(container_id, ["touch", "/go"])["Id"], detach=True)
    wait_until(lambda: own.docker_has(container_id, "end"))
    own.served.server.start()
    wait_until(lambda: so_far(path)[-1].content == b"end")
    lines = numbers(read(path)[:-1])

    assert lines[0] == -1
    assert lines[1] > 1000
    assert lines[1:] == list(range(lines[1], 40001))
    warnings = wait_until(lambda: dropped(own, container_id))
    assert len(warnings) == 1
    assert '"missing_seconds":' in warnings[0]


def test_containers_keep_the_log_driver_of_their_creation(own: Logged) -> None:
    script = r"printf '\377\n'; while [ ! -e /go ]; do sleep 0.05; done; seq 1 1000"
    before, its_path = own.run(script)
    try:
        own.restart(docker_log_driver="local")
        after, path = own.run(script)
        for container_id in (before, after):
            own.served.cri.exec(container_id, "touch", "/go")
            own.wait_exited(container_id)
    finally:
        own.restart(docker_log_driver="json-file")

    assert output(read(its_path)[:1]) == "\ufffd\n".encode()
    assert output(read(path)[:1]) == b"\xff\n"
    assert numbers(read(its_path)[1:]) == numbers(read(path)[1:]) == list(range(1, 1001))


def exited(own: Logged, container_id: str) -> bool:
    return own.served.cri.container_status(container_id).state == EXITED


def dropped(own: Logged, container_id: str) -> list[str]:
    """Return the server's warnings about lost output of a container."""
    log = own.served.server.daemon.log.read_text().splitlines()
    return [line for line in log if "Docker dropped output" in line and container_id in line]
