"""What every Engine must do: the fake in memory and the real ones. A `Subject` says what it is tried with."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import pytest

from shim import deadline
from shim.deadline import Scope
from shim.engine.errors import NameConflict
from shim.engine.interface import Engine, Event, JsonObject, PullProgress
from shim.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound
from tests.fakes.engine_state import NEVER

UNKNOWN = "f" * 64
LABEL, IMAGE_LABEL = "org.example.from", "org.example.image"
SECONDS = 30
"""Bound on what must happen at once; a real Engine on a loaded machine takes its time."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An Engine under test. Containers made through it are removed by whoever made it."""

    engine: Engine
    image: str
    """A busybox, labelled IMAGE_LABEL=image and LABEL=image."""
    make_image: Callable[[str], str]
    """Have a fresh image of this name, and give its id."""
    publish_image: Callable[[str], str]
    """Offer a fresh image for pulling below this repository name, and give its reference."""
    expect_exec: Callable[[list[str], bytes, bytes, int], None]
    """Say what a command will do: stdout, stderr, exit code; only the fake needs to be told."""
    expect_endless_exec: Callable[[list[str], bytes], None]
    """The same of one that runs on after its first output."""
    names: Iterator[str]
    """Container names nobody uses."""

    def body(self, **changes: object) -> JsonObject:
        """A container that runs until it is stopped, without network."""
        return {
            "Image": self.image,
            "Cmd": ["sleep", "600"],
            "Labels": {LABEL: "container"},
            "HostConfig": {"NetworkMode": "none", "CpuShares": 512},
            **changes,
        }

    def created(self, **changes: object) -> str:
        return self.engine.create_container(name=next(self.names), body=self.body(**changes))

    def running(self, **changes: object) -> str:
        container_id = self.created(**changes)
        self.engine.start_container(container_id)
        return container_id


class WatchedScope(Scope):
    """A scope that knows when somebody waits in it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = threading.Event()

    @contextmanager
    def on_cancel(self, wake: Callable[[], None]) -> Iterator[None]:
        with super().on_cancel(wake):
            self.waited_for.set()
            yield

    def cancel_once_waited_for(self) -> None:
        assert self.waited_for.wait(SECONDS)
        self.cancel()


# What it is


def test_the_engine_answers(subject: Subject) -> None:
    subject.engine.ping()
    info = subject.engine.info()

    assert (1, 41) <= subject.engine.api_version <= (1, 51)
    assert info.cgroup_driver in {"cgroupfs", "systemd"}
    assert info.docker_root_dir.startswith("/")
    assert "runc" in (info.runtimes or {})
    assert subject.engine.daemon_pid() > 1


# A container's life


def test_a_created_container_has_what_it_was_given(subject: Subject) -> None:
    name = next(subject.names)
    container_id = subject.engine.create_container(name=name, body=subject.body())
    seen = subject.engine.inspect_container(container_id)

    assert len(container_id) == 64
    assert (seen.id, seen.name) == (container_id, f"/{name}")
    assert (seen.state.status, seen.state.running, seen.state.pid) == ("created", False, 0)
    assert (seen.state.started_at, seen.state.finished_at) == (NEVER, NEVER)
    assert seen.config.image == subject.image
    assert seen.image == subject.engine.inspect_image(subject.image).id
    assert (seen.host_config.network_mode, seen.host_config.cpu_shares) == ("none", 512)
    assert "T" in seen.created
    assert seen.created.endswith("Z")


def test_image_labels_lie_below_those_of_the_container(subject: Subject) -> None:
    seen = subject.engine.inspect_container(subject.created())

    assert (seen.config.labels or {})[IMAGE_LABEL] == "image"
    assert (seen.config.labels or {})[LABEL] == "container"


def test_a_taken_name_is_a_conflict_that_tells_the_holder(subject: Subject) -> None:
    name = next(subject.names)
    holder = subject.engine.create_container(name=name, body=subject.body())

    with pytest.raises(NameConflict) as failed:
        subject.engine.create_container(name=name, body=subject.body())

    assert failed.value.holder == holder


def test_a_container_of_a_missing_image_is_not_created(subject: Subject) -> None:
    with pytest.raises(NotFound, match="image"):
        subject.created(Image="example.invalid/missing:1")


def test_a_started_container_runs_and_starting_again_changes_nothing(subject: Subject) -> None:
    container_id = subject.running()
    first = subject.engine.inspect_container(container_id)
    subject.engine.start_container(container_id)

    assert (first.state.status, first.state.running) == ("running", True)
    assert first.state.pid > 1
    assert first.state.started_at > first.created
    assert first.log_path
    assert subject.engine.inspect_container(container_id).state == first.state


def test_a_stopped_container_has_ended_and_stopping_again_changes_nothing(subject: Subject) -> None:
    container_id = subject.running()
    subject.engine.stop_container(container_id, grace=0)
    ended = subject.engine.inspect_container(container_id)
    subject.engine.stop_container(container_id, grace=0)

    assert (ended.state.status, ended.state.running, ended.state.pid) == ("exited", False, 0)
    assert ended.state.exit_code == 137
    assert ended.state.finished_at > ended.state.started_at
    assert subject.engine.inspect_container(container_id).state == ended.state


def test_stopping_a_container_that_never_ran_is_nothing(subject: Subject) -> None:
    container_id = subject.created()
    subject.engine.stop_container(container_id, grace=0)

    assert subject.engine.inspect_container(container_id).state.status == "created"


@pytest.mark.parametrize("signal", ["SIGKILL", "KILL", "9"])
def test_a_killed_container_ends_and_wait_gives_its_exit_code(subject: Subject, signal: str) -> None:
    container_id = subject.running()
    subject.engine.kill_container(container_id, signal=signal)

    assert subject.engine.wait_container(container_id) == 137
    assert subject.engine.wait_container(container_id) == 137


def test_a_container_that_does_not_run_cannot_be_killed(subject: Subject) -> None:
    with pytest.raises(FailedPrecondition, match="not running"):
        subject.engine.kill_container(subject.created(), signal="SIGKILL")


def test_a_running_container_is_removed_by_force(subject: Subject) -> None:
    container_id = subject.running()
    subject.engine.remove_container(container_id)
    subject.engine.wait_removed(container_id)

    with pytest.raises(NotFound):
        subject.engine.inspect_container(container_id)


def test_wait_removed_returns_when_somebody_has_removed_it(subject: Subject) -> None:
    container_id = subject.created()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subject.engine.wait_removed, container_id)
        subject.engine.remove_container(container_id)
        waiting.result(SECONDS)


def test_a_renamed_container_frees_its_name(subject: Subject) -> None:
    before, after = next(subject.names), next(subject.names)
    container_id = subject.engine.create_container(name=before, body=subject.body())
    subject.engine.rename_container(container_id, name=after)
    other = subject.engine.create_container(name=before, body=subject.body())

    assert subject.engine.inspect_container(container_id).name == f"/{after}"
    with pytest.raises(NameConflict) as failed:
        subject.engine.rename_container(other, name=after)
    assert failed.value.holder == container_id


def test_updated_resources_are_seen(subject: Subject) -> None:
    container_id = subject.running()
    subject.engine.update_container(container_id, body={"CpuShares": 256, "CpuPeriod": 100_000, "CpuQuota": 50_000})
    host = subject.engine.inspect_container(container_id).host_config

    assert (host.cpu_shares, host.cpu_period, host.cpu_quota) == (256, 100_000, 50_000)


def test_all_containers_are_listed(subject: Subject) -> None:
    created, running = subject.created(), subject.running()
    listed = {summary.id: summary for summary in subject.engine.list_containers()}

    assert (listed[created].state, listed[running].state) == ("created", "running")
    assert listed[running].names == [subject.engine.inspect_container(running).name]
    assert listed[running].image_id == subject.engine.inspect_image(subject.image).id
    assert listed[running].created > 0
    assert (listed[running].labels or {})[LABEL] == "container"


CALLS: dict[str, Callable[[Engine], object]] = {
    "inspect": lambda engine: engine.inspect_container(UNKNOWN),
    "start": lambda engine: engine.start_container(UNKNOWN),
    "stop": lambda engine: engine.stop_container(UNKNOWN, grace=0),
    "kill": lambda engine: engine.kill_container(UNKNOWN, signal="SIGKILL"),
    "wait": lambda engine: engine.wait_container(UNKNOWN),
    "remove": lambda engine: engine.remove_container(UNKNOWN),
    "rename": lambda engine: engine.rename_container(UNKNOWN, name="other"),
    "update": lambda engine: engine.update_container(UNKNOWN, body={"CpuShares": 2}),
    "create_exec": lambda engine: engine.create_exec(UNKNOWN, body={"Cmd": ["true"]}),
    "inspect_exec": lambda engine: engine.inspect_exec(UNKNOWN),
    "inspect_image": lambda engine: engine.inspect_image("example.invalid/missing:1"),
    "remove_image": lambda engine: engine.remove_image("example.invalid/missing:1"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_what_is_unknown_is_not_found(subject: Subject, call: Callable[[Engine], object]) -> None:
    with pytest.raises(NotFound):
        call(subject.engine)


def test_an_unknown_exec_cannot_be_started(subject: Subject) -> None:
    with pytest.raises(NotFound), subject.engine.start_exec(UNKNOWN):
        pytest.fail("it was started")


def test_waiting_for_the_removal_of_the_unknown_returns(subject: Subject) -> None:
    subject.engine.wait_removed(UNKNOWN)


# Execs


def _exec_body(command: list[str]) -> JsonObject:
    return {"Cmd": command, "AttachStdout": True, "AttachStderr": True}


def test_an_exec_gives_its_output_and_exit_code(subject: Subject) -> None:
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    subject.expect_exec(command, b"out\n", b"err\n", 3)
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(command))
    output = {1: b"", 2: b""}
    with subject.engine.start_exec(exec_id) as stream:
        for number, piece in stream.frames():
            output[number] += piece
    ended = subject.engine.inspect_exec(exec_id)

    assert output == {1: b"out\n", 2: b"err\n"}
    assert (ended.running, ended.exit_code) == (False, 3)


def test_a_prepared_exec_has_not_run(subject: Subject) -> None:
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(["true"]))
    seen = subject.engine.inspect_exec(exec_id)

    assert (seen.running, seen.exit_code, seen.pid) == (False, None, 0)


def test_an_exec_outlives_the_deadline_of_who_reads_it(subject: Subject) -> None:
    command = ["sleep", "600"]
    subject.expect_endless_exec(command, b"")
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(command))
    with subject.engine.start_exec(exec_id) as stream:
        with deadline.bound(0.2), pytest.raises(DeadlineExceeded):
            list(stream.frames())
        assert subject.engine.inspect_exec(exec_id).running


def test_closing_an_exec_stream_ends_a_blocked_reader(subject: Subject) -> None:
    command = ["sleep", "600"]
    subject.expect_endless_exec(command, b"")
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(command))
    with subject.engine.start_exec(exec_id) as stream, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list[tuple[int, bytes]], stream.frames())
        stream.close()
        stream.close()

        assert reading.result(SECONDS) == []


def test_an_exec_ends_with_its_container(subject: Subject) -> None:
    command = ["sh", "-c", "echo up; exec sleep 600"]
    subject.expect_endless_exec(command, b"up\n")
    container_id = subject.running()
    exec_id = subject.engine.create_exec(container_id, body=_exec_body(command))
    with subject.engine.start_exec(exec_id) as stream:
        frames = stream.frames()
        assert next(frames) == (1, b"up\n")
        subject.engine.kill_container(container_id, signal="SIGKILL")
        assert list(frames) == []
    ended = subject.engine.inspect_exec(exec_id)

    assert (ended.running, ended.exit_code) == (False, 137)


def test_a_prepared_exec_is_forgotten_with_the_end_of_its_container(subject: Subject) -> None:
    container_id = subject.running()
    exec_id = subject.engine.create_exec(container_id, body=_exec_body(["true"]))
    subject.engine.stop_container(container_id, grace=0)

    with pytest.raises(NotFound):
        subject.engine.inspect_exec(exec_id)


def test_an_exec_needs_a_running_container(subject: Subject) -> None:
    with pytest.raises(FailedPrecondition, match="not running"):
        subject.engine.create_exec(subject.created(), body=_exec_body(["true"]))


# Images


def test_an_image_is_found_by_tag_and_id(subject: Subject) -> None:
    reference = "example.org/made/here:1"
    image_id = subject.make_image(reference)
    seen = subject.engine.inspect_image(reference)
    listed = next(image for image in subject.engine.list_images() if image.id == image_id)

    assert seen.id == image_id
    assert subject.engine.inspect_image(image_id) == seen
    assert reference in (seen.repo_tags or [])
    assert reference in (listed.repo_tags or [])
    assert seen.size > 0


@pytest.mark.parametrize("by", ["tag", "id"])
def test_a_removed_image_is_gone(subject: Subject, by: str) -> None:
    reference = "example.org/made/gone:1"
    image_id = subject.make_image(reference)
    subject.engine.remove_image(reference if by == "tag" else image_id)

    assert image_id not in {image.id for image in subject.engine.list_images()}
    with pytest.raises(NotFound):
        subject.engine.inspect_image(reference)


def test_an_image_in_use_is_not_removed_by_its_id(subject: Subject) -> None:
    reference = "example.org/made/used:1"
    image_id = subject.make_image(reference)
    container_id = subject.running(Image=reference)

    with pytest.raises(FailedPrecondition, match=container_id[:12]):
        subject.engine.remove_image(image_id)

    assert subject.engine.inspect_image(reference).id == image_id


def test_a_pulled_image_is_here_and_progress_was_told(subject: Subject) -> None:
    reference = subject.publish_image("pulled")
    told: list[PullProgress] = []
    subject.engine.pull_image(reference, auth=None, progress=told.append)

    assert reference in (subject.engine.inspect_image(reference).repo_tags or [])
    assert any(message.status for message in told)


def test_what_the_registry_does_not_have_is_not_found(subject: Subject) -> None:
    missing = subject.publish_image("there").rpartition(":")[0] + ":not-there"

    with pytest.raises(NotFound, match="not-there"):
        subject.engine.pull_image(missing, auth=None, progress=lambda _message: None)


def test_disk_usage_tells_the_size_of_layers(subject: Subject) -> None:
    assert subject.engine.disk_usage()["LayersSize"] > 0


# Events


def _actions(events: Iterator[Event], container_id: str, *, last: str) -> list[str]:
    """Actions on the container up to `last`, without those that only some Engines tell."""
    actions = []
    for event in events:
        if event.type == "container" and event.actor.id == container_id:
            actions.append(event.action)
            if event.action == last:
                break
    return [action for action in actions if action in {"create", "start", "die", "destroy"}]


def test_events_tell_the_life_of_a_container(subject: Subject) -> None:
    with deadline.bound(SECONDS), subject.engine.events(since=None) as events:
        container_id = subject.running()
        subject.engine.remove_container(container_id)

        assert _actions(events, container_id, last="destroy") == ["create", "start", "die", "destroy"]


def test_events_from_a_time_on_begin_with_that_event(subject: Subject) -> None:
    with deadline.bound(SECONDS), subject.engine.events(since=None) as events:
        first = subject.created()
        created_at = next(event.time_nano for event in events if event.actor.id == first)
    second = subject.created()
    with deadline.bound(SECONDS), subject.engine.events(since=created_at) as events:
        seen = [(event.action, event.actor.id) for event in islice(events, 2)]

    assert seen == [("create", first), ("create", second)]


def test_leaving_the_block_ends_a_reader_in_another_thread(subject: Subject) -> None:
    with ThreadPoolExecutor(1) as pool:
        with subject.engine.events(since=None) as events:
            reading = pool.submit(list[Event], events)
            subject.created()

        assert {event.type for event in reading.result(SECONDS)} <= {"container", "image", "daemon"}


# Deadlines and cancellation


def test_a_wait_ends_with_its_deadline(subject: Subject) -> None:
    container_id = subject.running()

    with deadline.bound(0.2), pytest.raises(DeadlineExceeded, match=container_id):
        subject.engine.wait_container(container_id)


def test_a_wait_ends_when_its_client_goes(subject: Subject) -> None:
    container_id = subject.running()
    scope = WatchedScope()
    with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
        pool.submit(scope.cancel_once_waited_for)
        with pytest.raises(Cancelled, match=container_id):
            subject.engine.wait_container(container_id)


@pytest.mark.parametrize("call", ["inspect_container", "start_container", "remove_container"])
def test_nothing_is_asked_for_a_client_that_is_gone(subject: Subject, call: str) -> None:
    container_id = subject.created()
    scope = Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled):
        getattr(subject.engine, call)(container_id)

    assert subject.engine.inspect_container(container_id).state.status == "created"
