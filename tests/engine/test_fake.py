"""The fake Engine keeps the contract and follows its scripts."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded, ShimError, Unavailable
from shim.engine.answers import ImageSettings, PathKind
from shim.engine.errors import RemovalInProgress
from tests.engine.contract import IMAGE_LABEL, LABEL, SECONDS, Subject
from tests.engine.contract_containers import *  # noqa: F403 - the contract's tests are collected here
from tests.engine.contract_files import *  # noqa: F403 - collected here
from tests.engine.contract_processes import *  # noqa: F403 - collected here
from tests.engine.contract_streams import *  # noqa: F403 - collected here
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_files import FakeFile
from tests.fakes.engine_state import ExecScript


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def subject(fake: FakeEngine) -> Subject:
    image = "example.org/tests/busybox:1"
    fake.add_image(
        image,
        ImageSettings(labels={IMAGE_LABEL: "image", LABEL: "image"}),
        files={
            "/bin/busybox": b"",
            "/bin/sh": FakeFile(kind=PathKind.LINK, link="busybox"),
            "/etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
        },
    )
    serial = count()

    def publish(name: str) -> str:
        reference = f"registry.example.org/{name}:1"
        fake.publish_image(reference)
        return reference

    def expect(command: list[str], out: bytes, err: bytes, code: int) -> None:
        script = ExecScript(frames=[(1, out), (2, err)], exit_code=code)
        fake.script_exec(script, fits=lambda _id, given: given == command)

    def expect_endless(command: list[str], out: bytes) -> None:
        script = ExecScript(frames=[(1, out)] if out else [], endless=True)
        fake.script_exec(script, fits=lambda _id, given: given == command)

    def expect_other(**kind: bool) -> Callable[[list[str]], None]:
        return lambda command: fake.script_exec(ExecScript(**kind), fits=lambda _id, given: given == command)  # type: ignore[arg-type]

    return Subject(
        engine=fake,
        image=image,
        make_image=fake.add_image,
        publish_image=publish,
        expect_exec=expect,
        expect_endless_exec=expect_endless,
        expect_cat=expect_other(echo=True),
        expect_stty=expect_other(prints_size=True),
        wait_executed=lambda _id: None,
        names=(f"c{number}" for number in serial),
    )


def test_each_scripted_failure_hits_one_call(subject: Subject, fake: FakeEngine) -> None:
    container_id = subject.created()
    fake.fail_next("start_container", ShimError("no space left"))

    with pytest.raises(ShimError, match="no space left"):
        fake.start_container(container_id)
    assert fake.inspect_container(container_id).state.status == "created"
    fake.start_container(container_id)
    assert fake.inspect_container(container_id).state.running


def test_a_held_call_waits_and_others_do_not(subject: Subject, fake: FakeEngine) -> None:
    held, free = subject.created(), subject.created()
    with ThreadPoolExecutor(1) as pool, fake.held("inspect_container", held) as gate:
        waiting = pool.submit(fake.inspect_container, held)
        gate.wait_entered()
        assert fake.inspect_container(free).id == free
        assert not waiting.done()
        fake.release(gate)
        assert waiting.result(SECONDS).id == held


def test_a_held_call_ends_with_its_scope(subject: Subject, fake: FakeEngine) -> None:
    container_id = subject.created()
    with fake.held("inspect_container"), deadline.bound(0.01), pytest.raises(DeadlineExceeded):
        fake.inspect_container(container_id)


def test_a_held_removal_is_in_progress(subject: Subject, fake: FakeEngine) -> None:
    container_id = subject.created()
    with ThreadPoolExecutor(2) as pool, fake.held("remove_container") as gate:
        removing = pool.submit(fake.remove_container, container_id)
        gate.wait_entered()
        with pytest.raises(RemovalInProgress):
            fake.remove_container(container_id)
        waiting = pool.submit(fake.wait_removed, container_id)
        fake.release(gate)
        removing.result(SECONDS)
        waiting.result(SECONDS)


def test_a_lost_connection_ends_waits_and_event_streams(subject: Subject, fake: FakeEngine) -> None:
    container_id = subject.running()
    started = threading.Barrier(2)

    def read_events() -> None:
        with fake.events(since=None) as events:
            started.wait(SECONDS)
            list(events)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_events)
        started.wait(SECONDS)
        fake.disconnect()
        with pytest.raises(Unavailable):
            reading.result(SECONDS)
    with pytest.raises(Unavailable):
        fake.inspect_container(container_id)
    fake.reconnect()
    assert fake.inspect_container(container_id).state.running


def test_the_execs_of_an_exited_container_end(subject: Subject, fake: FakeEngine) -> None:
    subject.expect_endless_exec(["sleep", "1"], b"")
    container_id = subject.running()
    exec_id = fake.create_exec(container_id, body={"Cmd": ["sleep", "1"]})
    with fake.start_exec(exec_id) as stream:
        fake.exit_container(container_id, exit_code=1, oom_killed=True)
        assert list(stream.frames()) == []
    state = fake.inspect_container(container_id).state

    assert (state.status, state.exit_code, state.oom_killed) == ("exited", 1, True)
    assert fake.inspect_exec(exec_id).exit_code == 137


def test_an_endless_exec_ends_on_request(subject: Subject, fake: FakeEngine) -> None:
    subject.expect_endless_exec(["sleep", "1"], b"")
    exec_id = fake.create_exec(subject.running(), body={"Cmd": ["sleep", "1"]})
    with fake.start_exec(exec_id) as stream, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list[tuple[int, bytes]], stream.frames())
        fake.exit_exec(exec_id, exit_code=7)
        assert reading.result(SECONDS) == []

    assert fake.inspect_exec(exec_id).exit_code == 7
