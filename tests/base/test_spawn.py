import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from shim.base import deadline, spawn
from shim.base.spawn import STDERR_LIMIT, STDOUT_LIMIT, Outcome, run_bounded
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted
from tests.waits import wait_until

Program = Callable[..., Path]
"""`program(body, interpreter)` writes an executable script."""

SOON = 30.0
"""Seconds for a kill on a busy machine; the programs would otherwise run for a minute."""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def write(body: str, interpreter: str = "/bin/sh") -> Path:
        path = tmp_path / "program"
        path.write_text(f"#!{interpreter}\n{body}\n")
        path.chmod(0o755)
        return path

    return write


def run(path: Path, *, stdin: bytes = b"", timeout: float = 30.0) -> Outcome:
    return run_bounded(path, environment=dict(os.environ), stdin=stdin, timeout=timeout, what="try")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # ended before its file was opened or read
        return False
    return state not in "ZX"  # a zombie has ended


def open_descriptors() -> set[str]:
    # The listing includes the descriptor of the directory itself, which is closed afterwards.
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_a_program_gets_its_input_and_returns_output_and_exit_code(program: Program) -> None:
    path = program('cat; echo "warn: $COLOUR" >&2; exit 3')

    outcome = run_bounded(
        path, environment={**os.environ, "COLOUR": "blue"}, stdin=b"x" * 300_000, timeout=30, what="try"
    )

    assert outcome == Outcome(returncode=3, stdout=b"x" * 300_000, stderr=b"warn: blue\n")


def test_input_that_is_never_read_does_not_block(program: Program) -> None:
    assert run(program("echo done"), stdin=b"x" * 1_000_000).stdout == b"done\n"


def test_only_the_end_of_stderr_is_kept(program: Program) -> None:
    body = f"import sys; sys.stderr.write('a' * {3 * STDERR_LIMIT} + 'the end')"

    stderr = run(program(body, sys.executable)).stderr

    assert len(stderr) == STDERR_LIMIT
    assert stderr.endswith(b"aaa" + b"the end")


def test_output_at_the_limit_is_kept_whole(program: Program) -> None:
    assert len(run(program(f"head -c {STDOUT_LIMIT} /dev/zero")).stdout) == STDOUT_LIMIT


def test_output_one_byte_over_the_limit_is_refused(program: Program) -> None:
    with pytest.raises(ResourceExhausted, match="printed more than 1048576 bytes"):
        run(program(f"head -c {STDOUT_LIMIT + 1} /dev/zero"))


def test_a_program_with_endless_output_is_killed(program: Program, tmp_path: Path) -> None:
    with pytest.raises(ResourceExhausted, match=r"^try: printed more than 1048576 bytes, killed"):
        run(program(f"echo $$ >{tmp_path}/pid; exec yes"))

    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_signal_is_distinguished_from_an_exit(program: Program) -> None:
    assert run(program("kill -TERM $$")).returncode == -signal.SIGTERM


def test_a_program_that_hangs_is_killed_with_its_children(program: Program, tmp_path: Path) -> None:
    path = program(f"sleep 60 & echo $! >{tmp_path}/child; echo $$ >{tmp_path}/parent; wait")
    began = time.monotonic()

    with pytest.raises(DeadlineExceeded, match=r"^try: not finished within 0\.5 s, killed$"):
        run(path, timeout=0.5)

    assert time.monotonic() - began < SOON
    assert not is_running(int((tmp_path / "parent").read_text()))
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_running(child))  # the process ends some time after the signal


def test_a_cancelled_request_ends_the_program_at_once(program: Program, tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    path = program(f"echo $$ >{started}; sleep 60")
    scope = deadline.Scope()
    pids: list[int] = []

    def cancel_once_started() -> None:
        pids.append(int(started.read_text()))
        scope.cancel()

    client = threading.Thread(target=cancel_once_started)
    client.start()
    began = time.monotonic()
    with deadline.entered(scope), pytest.raises(Cancelled, match=r"^try: (start .*: )?the client cancelled"):
        run(path)
    client.join()

    assert time.monotonic() - began < SOON
    wait_until(lambda: not is_running(pids[0]))  # an abandoned start kills the program


def test_the_deadline_of_the_request_ends_the_program(program: Program) -> None:
    began = time.monotonic()

    with deadline.bound(0.2), pytest.raises(DeadlineExceeded, match=r"^try: the deadline of the request has passed"):
        run(program("sleep 60"))

    assert time.monotonic() - began < SOON


def test_nothing_is_started_for_a_cancelled_request(program: Program, tmp_path: Path) -> None:
    scope = deadline.Scope()
    scope.cancel()

    with deadline.entered(scope), pytest.raises(Cancelled):
        run(program(f"touch {tmp_path}/ran"))

    assert not (tmp_path / "ran").exists()


def test_a_daemon_that_keeps_the_pipes_open_does_not_delay_the_result(program: Program, tmp_path: Path) -> None:
    path = program(f"sleep 60 & echo $! >{tmp_path}/daemon; echo answer")
    began = time.monotonic()

    outcome = run(path)
    daemon = int((tmp_path / "daemon").read_text())

    try:
        assert outcome.stdout == b"answer\n"
        assert time.monotonic() - began < SOON
        assert is_running(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize("mode", [None, 0o644], ids=["missing", "not-executable"])
def test_a_program_that_cannot_be_started_raises_oserror(program: Program, tmp_path: Path, mode: int | None) -> None:
    path = tmp_path / "missing" if mode is None else program("")
    if mode is not None:
        path.chmod(mode)

    with pytest.raises(OSError, match=r"Permission denied|No such file"):
        run(path)


@pytest.fixture
def held(program: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A program whose start blocks until it is released, as on a dead volume, and the function that releases it."""
    path, gate, real = program("sleep 60"), threading.Event(), spawn._launch

    def launch(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[bytes]":
        if command[0] == path:
            gate.wait()
        return real(command, **options)

    monkeypatch.setattr(spawn, "_launch", launch)
    yield path, gate.set
    gate.set()
    wait_until(lambda: not spawn._STARTS._under_way)


def test_a_start_that_hangs_occupies_one_thread_and_the_error_names_the_program(
    held: tuple[Path, Callable[[], None]], tmp_path: Path
) -> None:
    path, release = held
    descriptors, threads = open_descriptors(), starting_threads()

    with pytest.raises(DeadlineExceeded, match=f"try: {path} could not be started for 0 s; is the volume"):
        run(path, timeout=0.2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawn, "START_SECONDS", 0.1)
        for _ in range(50):
            with pytest.raises(DeadlineExceeded, match=f"try: {path} could not be started"):
                run(path)
    assert len(starting_threads() - threads) == 1

    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho other\n")
    other.chmod(0o755)
    assert run(other).stdout == b"other\n"

    release()
    wait_until(lambda: starting_threads() <= threads)
    wait_until(lambda: open_descriptors() == descriptors)
    assert children_of_this_process(path) == []


def test_a_caller_may_wait_longer_for_others_than_a_start_may_take(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when hundreds of pods are deleted on a busy node. Each start is quick, and no volume is dead."""
    path, real, ended = program("exit 0"), spawn._launch, []

    def launch(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[bytes]":
        time.sleep(0.05)
        return real(command, **options)

    monkeypatch.setattr(spawn, "_launch", launch)
    monkeypatch.setattr(spawn, "START_SECONDS", 0.5)
    threads = [threading.Thread(target=lambda: ended.append(run(path).returncode), daemon=True) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [0] * 30


def starting_threads() -> set[threading.Thread]:
    """The threads that start programs; other threads may end at any time."""
    return {thread for thread in threading.enumerate() if thread.name == "start"}


def children_of_this_process(path: Path) -> list[int]:
    """The children that run or are not reaped."""
    pids = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if str(path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_wait_for_a_start_that_hangs_ends_with_the_client(held: tuple[Path, Callable[[], None]]) -> None:
    scope = deadline.Scope()
    threading.Timer(0.1, scope.cancel).start()
    with deadline.entered(scope), pytest.raises(Cancelled):
        run(held[0])


@pytest.mark.parametrize(
    ("body", "timeout", "raised"),
    [
        ("exit 0", SOON, nullcontext()),
        ("exec yes", SOON, pytest.raises(ResourceExhausted)),
        ("sleep 60", 0.3, pytest.raises(DeadlineExceeded)),
    ],
    ids=["ends", "floods", "hangs"],
)
def test_no_descriptor_stays_open(
    program: Program, body: str, timeout: float, raised: AbstractContextManager[object]
) -> None:
    before = open_descriptors()

    with raised:
        run(program(body), timeout=timeout)

    wait_until(lambda: open_descriptors() <= before)  # the thread of a late start closes its descriptors


def test_no_descriptor_stays_open_if_other_threads_take_the_last(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before, limits = program("exit 0"), open_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    real, taken = spawn._launch, []

    def launch(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[bytes]":
        child = real(command, **options)
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        os.close(taken.pop())  # enough for the handle of the process, not for the selector
        return child

    monkeypatch.setattr(spawn, "_launch", launch)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            run(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)

    assert open_descriptors() <= before


def test_the_children_of_a_killed_program_are_killed(program: Program, tmp_path: Path) -> None:
    path = program(f"sleep 60 >/dev/null 2>&1 & echo $! >{tmp_path}/child; kill -KILL $$")

    assert run(path).returncode == -signal.SIGKILL

    child = int((tmp_path / "child").read_text())
    give_up = time.monotonic() + SOON
    while is_running(child):
        assert time.monotonic() < give_up


def test_the_children_of_a_program_that_exited_continue(program: Program, tmp_path: Path) -> None:
    path = program(f"sleep 60 >/dev/null 2>&1 & echo $! >{tmp_path}/child")

    assert run(path).returncode == 0

    child = int((tmp_path / "child").read_text())
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_starts_of_one_program_side_by_side_all_end() -> None:
    """Also if the next start looks between the end of a start and the note of that end."""
    ended = []

    def start_often() -> None:
        ended.extend([run(Path("/bin/true")).returncode for _ in range(40)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=start_often, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(ended) == 160)
    finally:
        sys.setswitchinterval(interval)
