"""Behaviour that only real Engines show: restarts, hangs, registries, many calls at once."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from integration.conftest import Images
from integration.node.engine import Engine as RealEngine
from integration.node.registry import PASSWORD, USER, Registry
from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded, NotFound, ShimError, Unavailable
from shim.engine.client import DockerEngine
from shim.engine.errors import RegistryDenied, RegistryUnavailable, RemovalInProgress
from shim.engine.interface import RegistryAuth
from tests.engine.contract import Subject

SECONDS = 60


def ignore(_message: object) -> None:
    """Ignore progress messages."""


def test_the_adapter_speaks_each_engines_newest_api_version(adapter: DockerEngine, engine_name: str) -> None:
    assert adapter.api_version == {"20.10": (1, 41), "26": (1, 45)}.get(engine_name, (1, 51))


def test_the_daemon_is_found_by_its_socket(adapter: DockerEngine, engine: RealEngine) -> None:
    assert adapter.daemon_pid() == engine.daemon.pid


# Restarts and hangs


def test_calls_work_again_after_a_restart(subject: Subject, engine: RealEngine) -> None:
    container_id = subject.created()
    with subject.engine.events(since=None) as events:
        engine.restart()
        with pytest.raises(Unavailable):
            list(events)

    assert subject.engine.inspect_container(container_id).id == container_id


def test_a_crashed_engine_is_unavailable_until_it_is_back(subject: Subject, engine: RealEngine) -> None:
    container_id = subject.created()
    engine.kill()
    try:
        for _ in range(2):
            with pytest.raises(Unavailable):
                subject.engine.inspect_container(container_id)
    finally:
        engine.start()
    assert subject.engine.inspect_container(container_id).id == container_id


def test_a_wait_ends_with_the_engine(subject: Subject, engine: RealEngine) -> None:
    # The restarted engine stops containers that survived the crash, and gives those that ignore SIGTERM ten seconds.
    container_id = subject.running(StopSignal="SIGKILL")
    with ThreadPoolExecutor(1) as pool, subject.engine.events(since=None):
        waiting = pool.submit(subject.engine.wait_removed, container_id)
        engine.kill()
        try:
            with pytest.raises(Unavailable):
                waiting.result(SECONDS)
        finally:
            engine.start()


def test_a_call_to_a_frozen_engine_ends_with_its_timeout(engine: RealEngine, adapter: DockerEngine) -> None:
    with closing(DockerEngine(engine.url, request_timeout=0.2)) as hurried:
        adapter.ping()
        engine.freeze()
        try:
            for _ in range(2):
                with pytest.raises(DeadlineExceeded, match=r"within 0.2 s"):
                    hurried.ping()
        finally:
            engine.thaw()
    adapter.ping()


def test_a_cancelled_call_leaves_a_frozen_engine_at_once(engine: RealEngine, adapter: DockerEngine) -> None:
    adapter.ping()
    scope = Scope()
    engine.freeze()
    try:
        with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
            pool.submit(scope.cancel)
            with pytest.raises(Cancelled):
                adapter.ping()
    finally:
        engine.thaw()


# Many at once


def test_hundreds_of_concurrent_calls_log_no_warning(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    container_id = subject.running()
    calls = 200
    together = threading.Barrier(calls)

    def inspect() -> str:
        together.wait(SECONDS)
        return subject.engine.inspect_container(container_id).id

    with caplog.at_level(logging.DEBUG), ThreadPoolExecutor(calls) as pool:
        seen = {call.result(SECONDS) for call in [pool.submit(inspect) for _ in range(calls)]}

    assert seen == {container_id}
    assert caplog.records == []


def test_no_output_of_a_short_exec_is_lost(subject: Subject) -> None:
    container_id = subject.running()
    body = {"Cmd": ["sh", "-c", "echo a; echo b >&2; exit 5"], "AttachStdout": True, "AttachStderr": True}

    def run() -> tuple[bytes, bytes, int | None]:
        exec_id = subject.engine.create_exec(container_id, body=body)
        output = {1: b"", 2: b""}
        with subject.engine.start_exec(exec_id) as stream:
            for number, data in stream.frames():
                output[number] += data
        return output[1], output[2], subject.engine.inspect_exec(exec_id).exit_code

    with ThreadPoolExecutor(4) as pool:
        results = {call.result(SECONDS) for call in [pool.submit(run) for _ in range(40)]}

    assert results == {(b"a\n", b"b\n", 5)}


def test_only_one_of_two_concurrent_removals_succeeds(subject: Subject) -> None:
    container_id = subject.running()
    together = threading.Barrier(4)

    def remove() -> type[BaseException] | None:
        together.wait(SECONDS)
        try:
            subject.engine.remove_container(container_id)
        except (RemovalInProgress, NotFound) as error:
            subject.engine.wait_removed(container_id)
            return type(error)
        return None

    with ThreadPoolExecutor(4) as pool:
        outcomes = [call.result(SECONDS) for call in [pool.submit(remove) for _ in range(4)]]

    assert None in outcomes
    with pytest.raises(NotFound):
        subject.engine.inspect_container(container_id)


# Failures of containers


STARTS: dict[str, tuple[dict[str, object], type[ShimError], str]] = {
    "no command": ({"Cmd": ["/nope"]}, ShimError, 'exec: "/nope": stat /nope: no such file or directory'),
    "not executable": ({"Cmd": ["/etc/passwd"]}, ShimError, "permission denied"),
    "no user": ({"User": "nobody-here"}, ShimError, "unable to find user nobody-here"),
}


@pytest.mark.parametrize(("changes", "kind", "says"), STARTS.values(), ids=STARTS.keys())
def test_the_error_of_a_failed_start_names_the_cause(
    subject: Subject, changes: dict[str, object], kind: type[ShimError], says: str
) -> None:
    container_id = subject.created(**changes)

    with pytest.raises(ShimError, match=f"start container {container_id}: .*{says}") as failed:
        subject.engine.start_container(container_id)
    assert type(failed.value) is kind


# Registries


UNREACHABLE = "127.0.0.1:1/a/b:1"


def test_a_registry_without_a_server_is_unavailable(adapter: DockerEngine) -> None:
    with pytest.raises(RegistryUnavailable, match="connection refused"):
        adapter.pull_image(UNREACHABLE, auth=None, progress=ignore)


@pytest.fixture
def private_image(engine: RealEngine, images: Images, private_registry: Registry) -> str:
    """Publish an image that only USER may pull."""
    return private_registry.push(engine.api, images.busybox, name="private:1")


@pytest.mark.parametrize(
    "auth", [None, RegistryAuth(username=USER, password="wrong")], ids=["no credentials", "wrong ones"]
)
def test_a_pull_without_credentials_is_denied(
    adapter: DockerEngine, private_image: str, auth: RegistryAuth | None
) -> None:
    with pytest.raises(RegistryDenied, match=private_image) as failed:
        adapter.pull_image(private_image, auth=auth, progress=ignore)

    assert "wrong" not in str(failed.value)


def test_credentials_reach_the_registry(adapter: DockerEngine, private_image: str) -> None:
    adapter.pull_image(private_image, auth=RegistryAuth(username=USER, password=PASSWORD), progress=ignore)

    assert private_image in (adapter.inspect_image(private_image).repo_tags or [])
    adapter.remove_image(private_image)


def test_a_cancelled_pull_ends_at_once(subject: Subject) -> None:
    reference = subject.publish_image("cancelled")
    scope = Scope()
    cancel: Callable[[object], None] = lambda _message: scope.cancel()  # noqa: E731 - a lambda cannot be annotated
    with deadline.entered(scope), pytest.raises(Cancelled, match=reference):
        subject.engine.pull_image(reference, auth=None, progress=cancel)

    subject.engine.ping()
