import os
import signal
from pathlib import Path

import pytest

from integration.node.commands import NodeError
from integration.node.daemon import Daemon


def daemon(tmp_path: Path, script: str) -> Daemon:
    return Daemon(["sh", "-c", script], log=tmp_path / "log", env={**os.environ, "HERE": str(tmp_path)})


def test_start_returns_once_the_program_is_ready(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    made = daemon(tmp_path, "touch $HERE/flag; exec sleep 60")
    made.start(ready=flag.exists, timeout=10)
    try:
        assert flag.exists()
        assert made.running
    finally:
        made.kill()
    assert not made.running


def test_a_program_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    made = daemon(tmp_path, "echo cannot bind; exit 1")

    with pytest.raises(NodeError, match=r"(?s)it ended\ncannot bind"):
        made.start(ready=lambda: False, timeout=10)


def test_a_program_that_never_answers_is_killed(tmp_path: Path) -> None:
    made = daemon(tmp_path, "echo $$; exec sleep 60")

    with pytest.raises(NodeError, match="no answer in time"):
        made.start(ready=lambda: False, timeout=0.1)
    assert not made.running


def test_stop_lets_the_program_exit_by_itself(tmp_path: Path) -> None:
    made = daemon(tmp_path, "trap 'echo bye; exit 0' TERM; touch $HERE/flag; while :; do sleep 0.05; done")
    made.start(ready=(tmp_path / "flag").exists, timeout=10)

    made.stop(timeout=10)

    assert made.log_tail() == "bye"


def test_stop_kills_a_program_that_does_not_exit(tmp_path: Path) -> None:
    made = daemon(tmp_path, "trap '' TERM; touch $HERE/flag; while :; do sleep 0.05; done")
    made.start(ready=(tmp_path / "flag").exists, timeout=10)

    made.stop(timeout=0.1)

    assert not made.running


def test_stop_also_ends_a_frozen_program(tmp_path: Path) -> None:
    made = daemon(tmp_path, "touch $HERE/flag; exec sleep 60")
    made.start(ready=(tmp_path / "flag").exists, timeout=10)
    made.signal(signal.SIGSTOP)

    made.stop(timeout=10)

    assert not made.running


def test_a_running_program_is_not_started_twice(tmp_path: Path) -> None:
    made = daemon(tmp_path, "exec sleep 60")
    made.spawn()
    try:
        with pytest.raises(NodeError, match="already running"):
            made.spawn()
    finally:
        made.kill()


def test_there_is_no_process_id_without_a_process(tmp_path: Path) -> None:
    made = daemon(tmp_path, "true")
    made.stop(timeout=1)

    with pytest.raises(NodeError, match="is not running"):
        _ = made.pid
