import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import log
from shim.domain.errors import NotFound


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = handlers, level


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    log.configure(level="info", style="json", stream=stream)
    return stream


def test_a_line_is_one_json_object_with_level_time_and_module(out: io.StringIO) -> None:
    structlog.get_logger("shim.view.watch").info("resynced", containers=3)

    [line] = lines(out)

    assert line.pop("timestamp")
    assert line == {"event": "resynced", "level": "info", "logger": "shim.view.watch", "containers": 3}


def test_events_below_the_level_are_not_written(out: io.StringIO) -> None:
    structlog.get_logger("x").debug("quiet")

    assert out.getvalue() == ""


def test_bound_context_is_on_every_line(out: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request="7", method="ListImages"):
        structlog.get_logger("x").warning("slow")

    assert lines(out)[0]["request"] == "7"
    assert lines(out)[0]["method"] == "ListImages"


@pytest.mark.parametrize(
    "key",
    ["auth", "password", "identity_token", "registry_token", "envs", "env", "Authorization", "X-Registry-Auth"],
)
def test_secrets_are_masked_at_any_depth(out: io.StringIO, key: str) -> None:
    structlog.get_logger("x").info("pull", request={"deep": [{key: "hunter2"}]}, **{key: "hunter2"})

    assert "hunter2" not in out.getvalue()
    assert lines(out)[0][key] == log.MASK
    assert lines(out)[0]["request"] == {"deep": [{key: log.MASK}]}


def test_only_the_type_of_an_object_is_written(out: io.StringIO) -> None:
    structlog.get_logger("x").info("pull", given=pb.AuthConfig(password="hunter2"), raw=b"hunter2")

    assert "hunter2" not in out.getvalue()
    assert lines(out)[0]["given"] == "<AuthConfig>"


def test_errors_and_paths_appear_as_their_text(out: io.StringIO) -> None:
    structlog.get_logger("x").info("gone", error=NotFound("no such pod"), path=Path("/run/a"))

    assert lines(out)[0]["error"] == "no such pod"
    assert lines(out)[0]["path"] == "/run/a"


def test_a_name_that_is_not_utf8_does_not_lose_the_line(out: io.StringIO) -> None:
    structlog.get_logger("x").info("read", file="caf\udce9")

    assert lines(out)[0]["file"] == "caf\\udce9"


def test_a_traceback_is_kept_in_its_line(out: io.StringIO) -> None:
    try:
        raise KeyError("boom")
    except KeyError:
        structlog.get_logger("x").exception("failed")

    assert "KeyError: 'boom'" in str(lines(out)[0]["exception"])


def test_warnings_of_libraries_are_written(out: io.StringIO) -> None:
    logging.getLogger("docker.auth").info("looking")
    logging.getLogger("docker.auth").warning("strange %s", "file")
    logging.getLogger("urllib3.connectionpool").warning("Connection pool is full")

    assert [(line["logger"], line["level"], line["event"]) for line in lines(out)] == [
        ("docker.auth", "warning", "strange file")
    ]


def test_auto_writes_coloured_lines_on_a_terminal() -> None:
    stream = Terminal()
    log.configure(level="info", style="auto", stream=stream)

    structlog.get_logger("x").info("hello", token="hunter2")

    assert "hello" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_console_lines_have_no_colours_without_a_terminal() -> None:
    stream = io.StringIO()
    log.configure(level="info", style="console", stream=stream)

    structlog.get_logger("x").info("hello", pod="a/b")

    assert "pod=a/b" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_the_journal_gets_the_priority_of_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    with (tmp_path / "journal").open("w") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        log.configure(level="debug", style=style, stream=stream)
        logger = structlog.get_logger("x")
        logger.debug("one")
        logger.info("two")
        logger.warning("three")
        try:
            raise KeyError("four")
        except KeyError:
            logger.exception("failed")
        logging.getLogger("library").critical("five")

    written = (tmp_path / "journal").read_text().splitlines()
    assert [line[:3] for line in written[:4]] == ["<7>", "<6>", "<4>", "<3>"]
    assert {line[:3] for line in written[3:-1]} == {"<3>"}
    assert written[-1].startswith("<2>")


def test_a_stream_other_than_the_journal_has_no_priorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: io.StringIO
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    with (tmp_path / "file").open("w") as stream:
        log.configure(level="info", style="json", stream=stream)
        structlog.get_logger("x").info("hello")

    assert (tmp_path / "file").read_text().startswith("{")


def test_logging_to_a_closed_pipe_raises_nothing() -> None:
    log.configure(level="info", style="json", stream=Gone())

    structlog.get_logger("x").info("into the void")
