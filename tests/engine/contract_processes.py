"""The contract of every Engine: input and terminals of processes. See `tests.engine.contract`."""

import pytest

from shim.domain.errors import FailedPrecondition
from shim.engine.detach_keys import detach_keys, server_of
from shim.engine.interface import AttachOptions, JsonObject
from tests.engine.contract import SECONDS, Subject
from tests.waits import wait_until


def _exec_body(command: list[str], **changes: object) -> JsonObject:
    return {"Cmd": command, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True, **changes}


def test_an_exec_reads_its_input_to_the_end(subject: Subject) -> None:
    subject.expect_cat(["cat"])
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(["cat"]))
    output = b""
    with subject.engine.start_exec(exec_id) as stream:
        frames = stream.frames()
        stream.write(b"one\n")
        while output != b"one\n":
            output += next(frames)[1]
        stream.write(memoryview(b"two\n"))
        stream.close_stdin()
        output += b"".join(data for _, data in frames)
    ended = subject.engine.inspect_exec(exec_id)

    assert output == b"one\ntwo\n"
    assert (ended.running, ended.exit_code) == (False, 0)


def test_running_execs_are_listed_with_their_detach_keys(subject: Subject) -> None:
    subject.expect_cat(["cat"])
    container = subject.running()
    assert not subject.engine.inspect_container(container).exec_ids
    keys = detach_keys("serverId")
    mine = subject.engine.create_exec(container, body=_exec_body(["cat"], DetachKeys=keys))
    other = subject.engine.create_exec(container, body=_exec_body(["cat"]))
    with subject.engine.start_exec(mine) as stream:
        frames = stream.frames()
        stream.write(b"one\n")
        assert next(frames)[1] == b"one\n"
        assert set(subject.engine.inspect_container(container).exec_ids or []) == {mine, other}
        assert server_of(subject.engine.inspect_exec(mine).detach_keys) == "serverId"
        assert server_of(subject.engine.inspect_exec(other).detach_keys) == ""
        # Without a terminal they are ordinary input.
        typed = bytes(0 if key == "ctrl-@" else ord(key) for key in keys.split(","))
        stream.write(typed + b"\n")
        output = b""
        while not output.endswith(b"\n"):
            output += next(frames)[1]
        assert output == typed + b"\n"
        stream.close_stdin()
        assert list(frames) == []

    wait_until(lambda: mine not in (subject.engine.inspect_container(container).exec_ids or []))


def test_the_terminal_of_an_exec_is_resized(subject: Subject) -> None:
    command = ["sh", "-c", "read line; stty size"]
    subject.expect_stty(command)
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(command, Tty=True))
    output = b""
    with subject.engine.start_exec(exec_id, tty=True) as stream:
        subject.engine.resize_exec(exec_id, width=101, height=37)
        stream.write(b"\n")
        while piece := stream.read():
            output += piece

    assert output.strip() == b"37 101"


def test_the_terminal_of_an_exec_starts_with_its_size(subject: Subject) -> None:
    if subject.engine.api_version < (1, 42):
        pytest.skip("this Engine sizes a terminal only when it runs")
    command = ["sh", "-c", "read line; stty size"]
    subject.expect_stty(command)
    exec_id = subject.engine.create_exec(subject.running(), body=_exec_body(command, Tty=True))
    output = b""
    with subject.engine.start_exec(exec_id, tty=True, size=(101, 37)) as stream:
        stream.write(b"\n")
        while piece := stream.read():
            output += piece

    assert output.strip() == b"37 101"


def _attach(*, stdin: bool = True) -> AttachOptions:
    return AttachOptions(stdin=stdin, stdout=True, stderr=True, detach_keys="")


def test_an_attachment_carries_the_input_and_output_of_the_container(subject: Subject) -> None:
    container_id = subject.running(Cmd=["cat"], OpenStdin=True, StdinOnce=True)
    with subject.engine.attach_container(container_id, options=_attach()) as stream:
        frames = stream.frames()
        stream.write(b"hello\n")
        assert next(frames) == (1, b"hello\n")
        stream.close_stdin()
        assert list(frames) == []

    subject.engine.stop_container(container_id, grace=SECONDS)  # waits for the exit
    assert subject.engine.inspect_container(container_id).state.exit_code == 0


def test_an_attachment_ends_with_its_container_but_does_not_end_it(subject: Subject) -> None:
    container_id = subject.running()
    with subject.engine.attach_container(container_id, options=_attach(stdin=False)):
        pass
    assert subject.engine.inspect_container(container_id).state.running
    with subject.engine.attach_container(container_id, options=_attach(stdin=False)) as stream:
        subject.engine.kill_container(container_id, signal="SIGKILL")
        assert list(stream.frames()) == []


def test_the_terminal_of_a_stopped_container_cannot_be_resized(subject: Subject) -> None:
    with pytest.raises(FailedPrecondition):
        subject.engine.resize_container(subject.created(Tty=True), width=80, height=24)


def test_the_terminal_of_a_running_container_is_resized(subject: Subject) -> None:
    container_id = subject.running(Tty=True)

    subject.engine.resize_container(container_id, width=80, height=24)
