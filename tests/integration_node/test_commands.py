import sys
from pathlib import Path

import pytest

from integration.node import commands
from integration.node.commands import NodeError, exit_status, run, step


def test_run_returns_the_output_of_the_command() -> None:
    assert run(["sh", "-c", "echo $GREETING"], timeout=10, env={"GREETING": "hello"}) == "hello\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such-program-here"], "run no-such-program-here: no such program"),
        (["sh", "-c", "echo out; echo cause >&2; exit 3"], r"(?s)exit status 3\nout\ncause"),
        (["sleep", "30"], "run sleep 30: no end within 0.1 s"),
    ],
    ids=["missing", "fails", "slow"],
)
def test_run_reports_the_failure_of_a_command(argv: list[str], message: str) -> None:
    with pytest.raises(NodeError, match=message):
        run(argv, timeout=10 if argv[0] != "sleep" else 0.1)


def test_a_slow_machine_has_more_time() -> None:
    code = "from integration.node.commands import run; print(run(['sleep', '0.5'], timeout=0.01) or 'ended')"
    env = {"PYDOCKERSHIM_SLOWNESS": "6000", "PYTHONPATH": str(Path(__file__).parents[2])}

    assert run([sys.executable, "-c", code], timeout=60, env=env) == "ended\n"


def test_only_the_end_of_a_long_output_is_shown() -> None:
    with pytest.raises(NodeError) as failure:
        run([sys.executable, "-c", "print(*range(500), sep='\\n'); raise SystemExit(1)"], timeout=30)

    assert "\n499" in str(failure.value)
    assert "\n400\n" not in str(failure.value)


def test_a_step_is_printed_with_signs_of_life(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_HEARTBEAT_SECONDS", 0.01)

    with step("waiting for the bus"):
        run(["sleep", "0.2"], timeout=10)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  - waiting for the bus"
    assert lines[1].startswith("    ... waiting for the bus")
    assert lines[-1].endswith(" s")


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (-15, 143)], ids=["ok", "failed", "killed"])
def test_an_exit_status_is_a_shells(code: int, expected: int) -> None:
    assert exit_status(code) == expected
