"""Python programs see the preloaded clock."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.chaos.clock import Clock

DAY = 86400
SHOW = """
import datetime, sys, time
for _ in sys.stdin:
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), flush=True)
"""


def test_the_wall_clock_jumps_and_the_monotonic_clock_does_not(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    if not clock.can_jump:
        pytest.skip("no compiler")
    with subprocess.Popen(
        [sys.executable, "-c", SHOW], env=clock.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def ahead() -> list[int]:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            shown = map(float, child.stdout.readline().split())
            real = (time.time(), time.time(), time.monotonic())
            return [round(there - here) for there, here in zip(shown, real, strict=True)]

        assert ahead() == [0, 0, 0]
        with clock.jumped(DAY):
            assert ahead() == [DAY, DAY, 0]
        assert ahead() == [0, 0, 0]
