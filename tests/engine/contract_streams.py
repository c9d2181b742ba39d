"""The contract of every Engine, second part: execs, images and events."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound
from shim.engine.answers import Event, PullProgress
from shim.engine.interface import CONTAINER_ACTIONS, JsonObject
from tests.engine.contract import SECONDS, Subject

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


def test_a_created_exec_has_not_run(subject: Subject) -> None:
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(["true"]))
    seen = subject.engine.inspect_exec(exec_id)

    assert (seen.running, seen.exit_code, seen.pid) == (False, None, 0)


def test_an_exec_outlives_the_deadline_of_its_reader(subject: Subject) -> None:
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


def test_a_created_exec_is_gone_after_the_exit_of_its_container(subject: Subject) -> None:
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


def test_a_pull_reports_progress_and_brings_the_image(subject: Subject) -> None:
    reference = subject.publish_image("pulled")
    reported: list[PullProgress] = []
    subject.engine.pull_image(reference, auth=None, progress=reported.append)

    assert reference in (subject.engine.inspect_image(reference).repo_tags or [])
    assert any(message.status for message in reported)


def test_an_image_missing_in_the_registry_is_not_found(subject: Subject) -> None:
    missing = subject.publish_image("there").rpartition(":")[0] + ":not-there"

    with pytest.raises(NotFound, match="not-there"):
        subject.engine.pull_image(missing, auth=None, progress=lambda _message: None)


# Events


def _until(events: Iterator[Event], container_id: str, *, last: str) -> Iterator[Event]:
    """Yield events of the container up to `last`."""
    for event in events:
        if event.type == "container" and event.actor.id == container_id:
            yield event
            if event.action == last:
                return


def _actions(events: Iterator[Event], container_id: str, *, last: str) -> list[str]:
    """Return the actions on the container up to `last` that all Engines report."""
    actions = [event.action for event in _until(events, container_id, last=last)]
    return [action for action in actions if action in {"create", "start", "die", "destroy"}]


def test_events_report_the_life_of_a_container(subject: Subject) -> None:
    with deadline.bound(SECONDS), subject.engine.events(since=None) as events:
        container_id = subject.running()
        subject.engine.remove_container(container_id)

        assert _actions(events, container_id, last="destroy") == ["create", "start", "die", "destroy"]


def test_an_exec_causes_no_event(subject: Subject) -> None:
    container_id = subject.running()
    with deadline.bound(SECONDS), subject.engine.events(since=None) as events:
        exec_id = subject.engine.create_exec(container_id, body=_exec_body(["true"]))
        with subject.engine.start_exec(exec_id) as stream:
            list(stream.frames())
        subject.engine.remove_container(container_id)
        actions = [event.action for event in _until(events, container_id, last="destroy")]

    assert set(actions) <= CONTAINER_ACTIONS


def test_events_since_a_time_include_the_event_at_that_time(subject: Subject) -> None:
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

        assert {event.type for event in reading.result(SECONDS)} <= {"container", "image"}
