"""The worker in a thread of the test, with orders sent by the test."""

import errno
import itertools
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from structlog.testing import capture_logs

from shim.config.model import DockerLogDriver
from shim.logs import worker
from shim.logs.protocol import MAX_PACKET, Answer, Drain, Envelope, Follow, Forget, Order, Reopen, Report
from shim.logs.sink import Sink
from shim.logs.worker import Worker
from tests.logs.docker import DockerLog
from tests.waits import wait_until


class Boss:
    """Sends orders and reads answers."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._ticket = 0
        self._answers: dict[int, Answer] = {}

    def say(self, order: Order) -> int:
        self._ticket += 1
        self._orders.send(msgspec.json.encode(Envelope(self._ticket, order)))
        return self._ticket

    def answer(self, ticket: int) -> Answer:
        while ticket not in self._answers:
            answer = msgspec.json.decode(self._orders.recv(MAX_PACKET), type=Answer)
            self._answers[answer.ticket] = answer
        return self._answers.pop(ticket)

    def ask(self, order: Order) -> str:
        return self.answer(self.say(order)).error

    def blocked(self) -> list[str]:
        figures = self.answer(self.say(Report())).figures
        assert figures is not None
        return [one.error for one in figures.blocked]


@pytest.fixture
def boss(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boss]:
    monkeypatch.setattr(worker, "MIN_RETRY_SECONDS", 0.01)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    thread = threading.Thread(target=Worker(theirs).run)
    thread.start()
    with theirs:
        yield Boss(ours)
        ours.close()
        thread.join()


@pytest.fixture
def docker(tmp_path: Path, driver: DockerLogDriver) -> DockerLog:
    made = DockerLog(tmp_path / "docker", driver, max_size=4000, max_file=3)
    made.directory.mkdir()
    return made


@pytest.fixture
def order(docker: DockerLog, path: Path) -> Follow:
    return Follow(id="c", docker=str(docker.path), cri=str(path), driver=docker.driver)


def test_output_is_copied_when_docker_writes_it(boss: Boss, docker: DockerLog, path: Path, order: Follow) -> None:
    assert boss.ask(order) == ""
    assert path.read_bytes() == b""
    docker.start()
    for first in range(0, 90, 30):
        docker.lines(first, first + 30)
        wait_until(lambda: path.read_bytes() == docker.as_cri())


def test_a_drain_is_answered_when_all_output_is_written(
    boss: Boss, docker: DockerLog, path: Path, order: Follow
) -> None:
    boss.ask(order)
    docker.start()
    docker.lines(0, 100)
    assert boss.ask(Drain(id="c")) == ""
    assert path.read_bytes() == docker.as_cri()
    assert boss.ask(Reopen(id="c")) == "its output is not followed"
    assert boss.ask(Drain(id="c")) == ""


def test_orders_may_be_repeated(boss: Boss, docker: DockerLog, path: Path, order: Follow) -> None:
    docker.start()
    docker.lines(0, 10)
    for _ in range(3):
        assert boss.ask(order) == ""
        assert boss.ask(Reopen(id="c")) == ""
    for _ in range(2):
        assert boss.ask(Drain(id="c")) == ""
        assert boss.ask(order) == ""
    assert path.read_bytes() == docker.as_cri()


def test_a_changed_follow_order_replaces_the_first(boss: Boss, docker: DockerLog, path: Path, order: Follow) -> None:
    docker.start()
    boss.ask(msgspec.structs.replace(order, cri=str(path.with_name("wrong.log"))))
    assert boss.ask(order) == ""
    docker.lines(0, 10)
    boss.ask(Drain(id="c"))
    assert path.read_bytes() == docker.as_cri()


def test_a_log_that_cannot_be_written_is_reported_and_retried(
    boss: Boss, docker: DockerLog, path: Path, order: Follow
) -> None:
    docker.start()
    docker.lines(0, 10)
    path.parent.write_text("in the way")
    assert "exists" in boss.ask(order)
    assert "exists" in boss.ask(Reopen(id="c"))
    assert len(boss.blocked()) == 1
    drained = boss.say(Drain(id="c"))
    path.parent.unlink()
    assert boss.answer(drained).error == ""
    assert path.read_bytes() == docker.as_cri()
    assert boss.blocked() == []


@pytest.mark.parametrize("since", [0, 1], ids=["same order", "changed order"])
def test_a_drain_of_a_restarted_container_is_answered_when_all_output_is_written(
    boss: Boss, docker: DockerLog, path: Path, order: Follow, since: int
) -> None:
    docker.start()
    docker.lines(0, 10)
    path.parent.write_text("in the way")
    boss.ask(order)
    drained = boss.say(Drain(id="c"))
    boss.ask(msgspec.structs.replace(order, since=since))
    path.parent.unlink()
    assert boss.answer(drained).error == ""
    assert path.read_bytes() == docker.as_cri()
    docker.lines(10, 20)
    wait_until(lambda: path.read_bytes() == docker.as_cri())
    docker.lines(20, 30)
    assert boss.ask(Drain(id="c")) == ""
    assert path.read_bytes() == docker.as_cri()
    assert boss.ask(Reopen(id="c")) == "its output is not followed"


def test_a_full_disk_is_reported_once_for_all_retries(
    boss: Boss, docker: DockerLog, path: Path, order: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.start()
    docker.lines(0, 10)
    write, tries = Sink.write, itertools.count()

    def full(sink: Sink, lines: bytes) -> None:
        if next(tries) < 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(sink.path))
        write(sink, lines)

    monkeypatch.setattr(Sink, "write", full)
    with capture_logs() as reported:
        boss.ask(order)
        assert boss.ask(Drain(id="c")) == ""
    assert path.read_bytes() == docker.as_cri()
    assert [line["event"] for line in reported] == [
        "cannot write container log, retrying",
        "container log is writable again",
    ]


def test_a_blocked_log_does_not_delay_other_logs(boss: Boss, tmp_path: Path, docker: DockerLog, order: Follow) -> None:
    (tmp_path / "pod").write_text("in the way")
    boss.ask(order)
    other = DockerLog(tmp_path / "other")
    other.start()
    boss.ask(Follow(id="d", docker=str(other.path), cri=str(tmp_path / "d.log")))
    other.lines(0, 10)
    assert boss.ask(Drain(id="d")) == ""
    assert (tmp_path / "d.log").read_bytes() == other.as_cri()


def test_a_missing_directory_of_docker_is_retried(boss: Boss, docker: DockerLog, path: Path, order: Follow) -> None:
    docker.directory.rmdir()
    assert "no such file" in boss.ask(order)
    docker.start()
    docker.lines(0, 10)
    wait_until(lambda: path.exists() and path.read_bytes() == docker.as_cri())


def used_up(*_args: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_container_without_a_watch_is_copied(
    boss: Boss, docker: DockerLog, path: Path, order: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.logs.watches.INotify.add_watch", used_up)
    monkeypatch.setattr(worker, "FALLBACK_POLL_SECONDS", 0.01)
    assert boss.ask(order) == ""
    docker.start()
    for first in range(0, 30, 10):
        docker.lines(first, first + 10)
        wait_until(lambda: path.read_bytes() == docker.as_cri())
    monkeypatch.setattr(worker, "FALLBACK_POLL_SECONDS", 60)
    assert boss.blocked() == []
    docker.lines(30, 40)
    assert boss.ask(Drain(id="c")) == ""
    assert path.read_bytes() == docker.as_cri()


def test_the_log_process_works_without_inotify(
    request: pytest.FixtureRequest, docker: DockerLog, path: Path, order: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.logs.watches.INotify", used_up)
    monkeypatch.setattr(worker, "FALLBACK_POLL_SECONDS", 0.01)
    boss: Boss = request.getfixturevalue("boss")
    docker.start()
    assert boss.ask(order) == ""
    docker.lines(0, 10)
    wait_until(lambda: path.read_bytes() == docker.as_cri())


def test_the_last_output_of_a_removed_container_is_copied(
    boss: Boss, docker: DockerLog, path: Path, order: Follow
) -> None:
    docker.start()
    boss.ask(order)
    docker.lines(0, 10)
    wait_until(lambda: path.read_bytes() == docker.as_cri())
    docker.lines(10, 20)
    shutil.rmtree(docker.directory)
    assert boss.ask(Forget(id="c")) == ""
    assert path.read_bytes() == docker.as_cri()


def test_the_log_of_a_removed_container_is_not_retried(boss: Boss, path: Path, order: Follow) -> None:
    path.parent.write_text("in the way")
    boss.ask(order)
    assert "exists" in boss.ask(Forget(id="c"))
    assert boss.blocked() == []


def test_an_unexpected_error_of_a_log_is_reported_and_does_not_delay_others(
    boss: Boss, docker: DockerLog, path: Path, order: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.start()
    with monkeypatch.context() as broken:
        broken.setattr("shim.logs.follow.find_position", lambda *_, **__: 1 / 0)
        assert boss.ask(order) == "division by zero"
    docker.lines(0, 10)
    wait_until(lambda: path.read_bytes() == docker.as_cri())


def test_a_report_of_logs_with_long_paths_fits_in_a_packet(boss: Boss, tmp_path: Path) -> None:
    (tmp_path / "pod").write_text("in the way")
    for number in range(50):
        cri = f"{tmp_path}/pod/{'x/' * 1900}{number}.log"
        assert boss.ask(Follow(id=str(number), docker=str(tmp_path / "c.log"), cri=cri)) != ""
    assert 0 < len(boss.blocked()) < 50


def test_a_report_has_the_figures_of_all_logs(boss: Boss, docker: DockerLog, order: Follow) -> None:
    docker.start()
    docker.lines(0, 10)
    boss.ask(order)
    boss.ask(Drain(id="c"))
    boss.ask(order)
    figures = boss.answer(boss.say(Report())).figures
    assert figures is not None
    assert (figures.followed, figures.lines, figures.behind_bytes, figures.unreadable) == (1, 10, 0, 0)


def test_a_report_counts_blocked_logs_and_shows_some(boss: Boss, tmp_path: Path) -> None:
    (tmp_path / "pod").write_text("in the way")
    for number in range(60):
        file = tmp_path / f"{number}" / "c.log"
        file.parent.mkdir()
        file.write_bytes(b"x" * 100)
        boss.ask(Follow(id=str(number), docker=str(file), cri=f"{tmp_path}/pod/{number}.log"))
    figures = boss.answer(boss.say(Report())).figures
    assert figures is not None
    assert (figures.blocked_logs, len(figures.blocked), figures.behind_bytes) == (60, 50, 6000)
