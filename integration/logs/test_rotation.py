"""Rotations by a kubelet, by Docker and by both, while the container writes."""

import os
import signal
from itertools import count

import grpc

from integration.logs.conftest import EXITED, Logged, on_drivers
from integration.logs.crilog import COUNT, LINES, numbers, read, so_far, with_rotated
from integration.waiting import wait_until


def test_the_new_file_exists_when_reopen_returns(own: Logged) -> None:
    container_id, path = own.run("echo first; while [ ! -e /go ]; do sleep 0.05; done; echo second; sleep 600")
    wait_until(lambda: so_far(path))
    old = path.with_name("0.log.20260101-000000")
    path.rename(old)
    own.reopen(container_id)

    assert path.read_bytes() == b""
    before = old.read_bytes()
    own.served.cri.exec(container_id, "touch", "/go")
    assert [line.content for line in wait_until(lambda: so_far(path))] == [b"second"]
    assert old.read_bytes() == before


def test_no_line_is_lost_over_twenty_reopens(own: Logged) -> None:
    container_id, path = own.run(COUNT.format(lines=LINES))
    for number in range(20):
        wait_until(lambda: path.stat().st_size)
        own.rotate(container_id, path, number)
    own.wait_exited(container_id)

    assert len(list(path.parent.iterdir())) == 21
    assert numbers(with_rotated(path)) == list(range(LINES))


def test_reopen_without_a_rename_goes_on_in_the_same_file(own: Logged) -> None:
    container_id, path = own.run(COUNT.format(lines=2000))
    for _ in range(10):
        own.reopen(container_id)
    own.wait_exited(container_id)

    assert numbers(read(path)) == list(range(2000))


def test_no_line_is_lost_when_docker_rotates_under_load(own: Logged) -> None:
    container_id, path = own.run(COUNT.format(lines=LINES))
    docker_log = own.docker_log(container_id)
    own.wait_exited(container_id)

    assert len(list(docker_log.parent.glob(f"{docker_log.name}*"))) >= 3
    assert numbers(read(path)) == list(range(LINES))


@on_drivers("json-file", "local")
def test_no_line_is_lost_when_docker_and_the_kubelet_rotate(own: Logged) -> None:
    container_id, path = own.run(COUNT.format(lines=LINES))
    for number in count():
        if own.served.cri.container_status(container_id).state == EXITED:
            break
        if path.stat().st_size > 10_000:
            try:
                own.rotate(container_id, path, number)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                break  # the container has exited since the check
    own.wait_exited(container_id)

    assert numbers(with_rotated(path)) == list(range(LINES))


@on_drivers("json-file", "local")
def test_files_rotated_while_the_log_process_was_stopped_are_read(own: Logged) -> None:
    """A file of Docker is full, and no line is dropped."""
    container_id, path = own.run("echo up; while [ ! -e /go ]; do sleep 0.05; done; seq 1 4000; sleep 600")
    wait_until(lambda: so_far(path))
    worker = own.worker()
    os.kill(worker, signal.SIGSTOP)
    docker_log = own.docker_log(container_id)
    own.served.cri.exec(container_id, "touch", "/go")
    wait_until(lambda: own.docker_has(container_id, "4000"))
    assert docker_log.with_name(f"{docker_log.name}.1").exists()
    assert len(read(path)) == 1
    os.kill(worker, signal.SIGCONT)

    wait_until(lambda: len(so_far(path)) == 4001)
    assert numbers(read(path)[1:]) == list(range(1, 4001))
