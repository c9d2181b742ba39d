import subprocess
from collections.abc import Iterator

import pytest

from shim.daemon.recover import end_execs
from shim.domain.errors import DeadlineExceeded
from shim.domain.ids import ContainerId
from shim.engine.detach_keys import detach_keys
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_state import ExecScript
from tests.pods import ready_pod, running

SECONDS = 20.0
EARLIER = "earlierS"


@pytest.fixture
def container(rt: Runtime) -> ContainerId:
    return running(rt, ready_pod(rt))


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as started:
        yield started
        started.kill()


def prepared(engine: FakeEngine, container: ContainerId, *, keys: str, pid: int) -> str:
    engine.script_exec(ExecScript(endless=True, pid=pid))
    return engine.create_exec(container, body={"Cmd": ["x"], "DetachKeys": keys})


def begun(engine: FakeEngine, container: ContainerId, *, keys: str, pid: int) -> str:
    exec_id = prepared(engine, container, keys=keys, pid=pid)
    with engine.start_exec(exec_id):
        return exec_id


def is_watched(rt: Runtime, exec_id: str, container: ContainerId) -> bool:
    return rt.deferred_checks.is_pending(f"exec {exec_id} in container {container}")


def test_an_exec_of_an_earlier_server_is_killed(
    rt: Runtime, engine: FakeEngine, container: ContainerId, process: "subprocess.Popen[bytes]"
) -> None:
    begun(engine, container, keys=detach_keys(EARLIER), pid=process.pid)

    end_execs(rt)

    assert process.wait(SECONDS) == -9


def test_an_orphaned_exec_that_begins_late_is_killed_then(
    rt: Runtime, engine: FakeEngine, container: ContainerId, process: "subprocess.Popen[bytes]"
) -> None:
    exec_id = prepared(engine, container, keys=detach_keys(EARLIER), pid=process.pid)
    end_execs(rt)
    assert is_watched(rt, exec_id, container)

    with engine.start_exec(exec_id):
        pass

    assert process.wait(SECONDS) == -9


def test_execs_of_this_server_and_of_users_run_on(rt: Runtime, engine: FakeEngine, container: ContainerId) -> None:
    execs = [begun(engine, container, keys=keys, pid=0) for keys in (detach_keys(rt.server.mark), "ctrl-p,ctrl-q", "")]

    end_execs(rt)

    assert not any(is_watched(rt, exec_id, container) for exec_id in execs)


def test_an_uninspectable_container_is_tried_again(
    rt: Runtime, engine: FakeEngine, container: ContainerId, process: "subprocess.Popen[bytes]"
) -> None:
    begun(engine, container, keys=detach_keys(EARLIER), pid=process.pid)
    engine.fail_next("inspect_container", *[DeadlineExceeded("inspect container: not within 2 s")] * 2)

    end_execs(rt)

    assert process.wait(SECONDS) == -9
