"""A short run of each fuzzer, and tests that fuzzers find faults. `make fuzz` runs longer, and with enormous inputs."""

import logging
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.fuzz.accounting import TooExpensive
from tests.fuzz.runner import LARGE, Finding, fuzz, replay, save
from tests.fuzz.target import Target, pure
from tests.fuzz.targets import TARGETS

SECONDS = 0.3
SEED = 16

_KEPT: list[int] = []


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    """Disable logs, like `make fuzz`: their time stamps keep memory for some rounds."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_short_run_has_no_finding(target: Target) -> None:
    done = fuzz(target, seed=SEED, seconds=SECONDS, enormous=False)

    assert done.inputs > len(target.corpus)


def _faulty(data: bytes) -> None:
    if b"x" in data:
        raise KeyError(data)
    if not data.startswith(b"ab"):
        raise ValueError


@pytest.fixture
def faulty() -> Target:
    return Target(name="faulty", corpus=[b"abcdef"], words=(b"x",), declared=(ValueError,), open=pure(_faulty))


def test_an_undeclared_error_is_found_and_can_be_replayed(faulty: Target, tmp_path: Path) -> None:
    with pytest.raises(Finding) as first:
        fuzz(faulty, seed=1, seconds=60)
    with pytest.raises(Finding) as second:
        fuzz(faulty, seed=1, seconds=60)
    found = first.value
    save(found, tmp_path)

    assert b"x" in found.data
    assert second.value.data == found.data
    assert found.file is not None
    assert "KeyError" in str(found)
    with pytest.raises(KeyError):
        replay(faulty, found.file.read_bytes())


def _leaking_thread(_data: bytes) -> None:
    threading.Thread(target=threading.Event().wait, args=(12,), daemon=True).start()


def _leaking_memory(data: bytes) -> None:
    bytes(1 << 20)
    if data == b"large":
        assert bytes(64 << 20)


def _leaking_descriptor(_data: bytes) -> None:
    _KEPT.append(os.open("/dev/null", os.O_RDONLY))


def _failing_thread(_data: bytes) -> None:
    thread = threading.Thread(target=lambda: 1 // 0)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_leaking_thread, "threads and descriptors"),
        (_leaking_memory, "bytes of memory, at most 16777216"),
        (_failing_thread, "a thread has failed: ZeroDivisionError"),
        (_leaking_descriptor, "threads and descriptors"),
    ],
    ids=["thread", "memory", "failing thread", "descriptor"],
)
def test_an_input_that_exceeds_a_bound_is_found(run: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.accounting.SETTLE_SECONDS", 0.1)
    target = Target(name="costly", corpus=[b"large"], declared=(), open=pure(run))  # type: ignore[arg-type]

    with pytest.raises((TooExpensive, AssertionError), match=words):
        replay(target, b"large")
    while _KEPT:
        os.close(_KEPT.pop())


def test_a_leak_of_100_bytes_an_input_is_found() -> None:
    kept: list[bytes] = []
    target = Target(name="leaky", corpus=[b"abc"], declared=(), open=pure(lambda _: kept.append(bytes(67))))

    with pytest.raises(Finding, match=r"inputs left .* bytes of memory each time"):
        fuzz(target, seed=1, seconds=0)


def test_memory_that_grows_with_new_inputs_is_found() -> None:
    kept: dict[bytes, bytes] = {}
    target = Target(
        name="growing",
        corpus=[b"abc" * 20],
        declared=(),
        open=pure(lambda data: kept.setdefault(data, b"x" * 64_000)),
    )

    with pytest.raises(Finding, match="the process grew"):
        fuzz(target, seed=1, seconds=60)


class _EnoughError(Exception):
    """Enough inputs were seen."""


def test_large_inputs_are_measured_with_few_starts_of_tracemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = 0
    start = tracemalloc.start
    measured: list[bool] = []

    def counted() -> None:
        nonlocal starts
        starts += 1
        start()

    def run(data: bytes) -> None:
        if len(data) <= LARGE:
            raise ValueError
        measured.append(tracemalloc.is_tracing())
        if len(measured) == 1000:
            raise _EnoughError

    monkeypatch.setattr("tracemalloc.start", counted)
    target = Target(name="large", corpus=[bytes(3 * LARGE)], declared=(ValueError,), open=pure(run))
    with pytest.raises(Finding) as found:
        fuzz(target, seed=1, seconds=60)

    assert isinstance(found.value.__cause__, _EnoughError)
    assert all(measured)
    assert starts < 20
