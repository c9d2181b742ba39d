"""Progress is computed from the messages of both image stores of Docker."""

from typing import Any

import pytest

from shim.engine.answers import PullProgress
from shim.image.progress import Progress, retry_seconds


def message(status: str, layer: str = "", current: int | None = None) -> PullProgress:
    detail: dict[str, Any] | None = None if current is None else {"current": current, "total": 100}
    return PullProgress(id=layer, status=status, progress_detail=detail)


def fed(*messages: PullProgress) -> Progress:
    progress = Progress()
    for each in messages:
        progress.advance(each)
    return progress


@pytest.mark.parametrize(
    ("before", "now", "advances"),
    [
        pytest.param([], message("Pulling from library/busybox", "latest"), True, id="first word"),
        pytest.param([message("Pulling from x", "1")], message("Pulling from x", "1"), False, id="same word"),
        pytest.param([], message("Pulling fs layer", "a"), True, id="new layer"),
        pytest.param([message("Pulling fs layer", "a")], message("Pulling fs layer", "a"), False, id="known layer"),
        pytest.param([message("Pulling fs layer", "a")], message("Waiting", "a"), True, id="next step"),
        pytest.param([message("Downloading", "a", 5)], message("Downloading", "a", 6), True, id="more bytes"),
        pytest.param([message("Downloading", "a", 5)], message("Downloading", "a", 5), False, id="repeated"),
        pytest.param([message("Downloading", "a", 5)], message("Downloading", "a", 2), False, id="fell back"),
        pytest.param(
            [message("Downloading", "a", 5), message("Downloading", "a", 2)],
            message("Downloading", "a", 3),
            True,
            id="caught up after falling back",
        ),
        pytest.param([message("Downloading", "a", 5)], message("Downloading", "b", 5), True, id="another layer"),
        pytest.param([message("Downloading", "a", 5)], message("Retrying in 4 seconds", "a"), False, id="retry"),
        pytest.param([message("Extracting", "a", 1)], message("Extracting", "a", 2), True, id="extraction"),
        pytest.param([message("Extracting", "a", 1)], message("Extracting", "a", 1), False, id="stuck extraction"),
        pytest.param([message("Extracting", "a", 1)], message("Pull complete", "a"), True, id="complete"),
        pytest.param(
            [message("Pulling layer fs", "a", 1)], message("Pulling layer fs", "a", 2), True, id="newer engine"
        ),
    ],
)
def test_advance_detects_progress(before: list[PullProgress], now: PullProgress, *, advances: bool) -> None:
    assert fed(*before).advance(now) is advances


@pytest.mark.parametrize(
    ("steps", "is_local"),
    [
        pytest.param({}, False, id="manifest not here yet"),
        pytest.param({"a": "Pulling fs layer"}, False, id="to be downloaded"),
        pytest.param({"a": "Downloading", "b": "Extracting"}, False, id="one still downloads"),
        pytest.param({"a": "Waiting", "b": "Download complete"}, False, id="one waits for its download"),
        pytest.param({"a": "Verifying Checksum"}, True, id="checking"),
        pytest.param({"a": "Download complete", "b": "Pull complete"}, True, id="to be extracted"),
        pytest.param({"a": "Extracting", "b": "Already exists"}, True, id="extracting"),
        pytest.param({"a": "Pull complete", "b": "Already exists"}, False, id="layers done, config to come"),
    ],
)
def test_is_local_while_only_local_work_is_left(steps: dict[str, str], *, is_local: bool) -> None:
    assert fed(*(message(status, layer) for layer, status in steps.items())).is_local is is_local


def test_retried_layer_remains_to_be_downloaded() -> None:
    progress = fed(message("Downloading", "a", 5), message("Extracting", "b", 1))
    progress.advance(message("Retrying in 1 second", "a"))
    assert not progress.is_local


@pytest.mark.parametrize(
    ("steps", "is_waiting", "may_be_waiting"),
    [
        pytest.param([], False, False, id="manifest not here yet"),
        pytest.param([("a", "Pulling fs layer")], False, True, id="slot or joined"),
        pytest.param([("a", "Pulling fs layer"), ("a", "Waiting")], True, True, id="no slot"),
        pytest.param([("a", "Waiting"), ("a", "Downloading")], False, False, id="slot"),
        pytest.param([("a", "Downloading"), ("b", "Waiting")], False, False, id="one has begun"),
        pytest.param([("a", "Extracting"), ("b", "Waiting")], True, True, id="one has arrived"),
        pytest.param([("a", "Waiting"), ("a", "Retrying in 5 seconds")], False, False, id="slot, and refused"),
        pytest.param([("a", "Retrying in 5 seconds")], False, False, id="unknown layer"),
        pytest.param([("a", "Pull complete")], False, False, id="done"),
    ],
)
def test_waiting_layers_are_detected(steps: list[tuple[str, str]], *, is_waiting: bool, may_be_waiting: bool) -> None:
    progress = fed(*(message(status, layer) for layer, status in steps))
    assert (progress.is_waiting, progress.may_be_waiting) == (is_waiting, may_be_waiting)


@pytest.mark.parametrize(
    ("status", "seconds"),
    [("Retrying in 1 second", 1), ("Retrying in 15 seconds", 15), ("Retrying", None), ("Downloading", None)],
)
def test_retry_seconds_are_parsed(status: str, seconds: int | None) -> None:
    assert retry_seconds(message(status, "a")) == seconds


def test_progress_is_summarized_for_the_log() -> None:
    progress = fed(
        message("Downloading", "a", 70),
        message("Downloading", "b", 40),
        message("Downloading", "b", 10),
        message("Pull complete", "a"),
        message("Already exists", "c"),
        message("Pulling from library/busybox", "latest"),
    )
    assert progress.layers == "2/3"
    assert progress.downloaded == 110
