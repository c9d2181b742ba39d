"""Runs all checks, in a sensible order of repair. A finding is yielded once the earlier findings are known."""

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO

from shim.config.model import Config
from shim.doctor.checks import CHECKS, Check
from shim.doctor.findings import Finding
from shim.doctor.here import check_here
from shim.doctor.report import Report, decode_report, encode_order

SECONDS = 14.0
"""Until the last check times out."""

_PIECE = 1 << 16
_STDERR_SHOWN = 300
"""Last characters of stderr to show if the process ended early."""


def check(config: Config, *, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check this node as a server with these settings would find it; yield findings as they are made.

    All checks run at once and each has a bound, so the last finding comes within the longest of them.
    """
    with _worker(config, environ) as worker:
        yield from check_here()
        for number, spec in enumerate(CHECKS):
            yield from worker.findings(number)
            if not worker.has_ended(number):
                yield _timed_out(spec, config, has_begun=worker.has_begun(number))


def _timed_out(spec: Check, config: Config, *, has_begun: bool) -> Finding:
    if not has_begun:
        text = f"not begun within {SECONDS:g} s: this machine is too busy"
        return Finding("warn", spec.subject, text, "run doctor again")
    text = f"no end within {spec.seconds:g} s, waiting for {spec.waits_for(config)}"
    return Finding("FAIL", spec.subject, text, "find out what hangs there: a dead volume, a stopped process")


class _Worker:
    """Findings of the process that runs the checks."""

    def __init__(self, child: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        assert child.stdout is not None  # noqa: S101 - asked for as a pipe
        self._child = child
        self._errors = errors
        self._stdout = child.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._started = time.monotonic()
        self._rest = b""
        self._found: list[deque[Finding]] = [deque() for _ in CHECKS]
        self._begun: dict[int, float] = {}
        self._ended: set[int] = set()

    def findings(self, number: int) -> Iterator[Finding]:
        """Yield the findings of a check as they come, until its end or its bound."""
        found = self._found[number]
        while True:
            while found:
                yield found.popleft()
            if number in self._ended or not self._receive(self._until(number) - time.monotonic()):
                return

    def has_begun(self, number: int) -> bool:
        """Return whether a check was under way."""
        return number in self._begun

    def _until(self, number: int) -> float:
        """Return when a check is given up: some time after it has begun, which may take long on a busy machine."""
        begun = self._begun.get(number)
        end = self._started + SECONDS
        return end if begun is None else min(end, begun + CHECKS[number].seconds)

    def has_ended(self, number: int) -> bool:
        """Return whether all findings of a check were yielded."""
        return number in self._ended

    def close(self) -> None:
        """Close the pipe and stop waiting for it."""
        self._selector.close()

    def _receive(self, seconds: float) -> bool:
        """Wait for more; False when there is none in time."""
        if not self._selector.select(max(0.0, seconds)):
            return False
        data = os.read(self._stdout.fileno(), _PIECE)
        if not data:
            self._fail()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(decode_report(line))
        return True

    def _take(self, report: Report) -> None:
        match report.step:
            case "begun":
                self._begun[report.check] = time.monotonic()
            case "ended":
                self._ended.add(report.check)
            case "found" if report.finding is not None:
                self._found[report.check].append(report.finding)

    def _fail(self) -> None:
        """End the checks that are under way: the process that ran them is gone."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-_STDERR_SHOWN:]
        for number, spec in enumerate(CHECKS):
            if number not in self._ended:
                text = f"the process that checks has ended: {said or 'without a word'}"
                self._found[number].append(Finding("FAIL", spec.subject, text, "run doctor again"))
                self._ended.add(number)


@contextmanager
def _worker(config: Config, environ: Mapping[str, str]) -> Iterator[_Worker]:
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            # -P, and this program's own path: doctor is run by root, in whatever directory.
            [sys.executable, "-P", "-m", "shim.doctor.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,  # not ours: who reads that waits for its end, and this process may be left behind
            env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        worker = _Worker(child, errors)
        try:
            assert child.stdin is not None  # noqa: S101 - asked for as a pipe
            with suppress(BrokenPipeError):  # it has ended already, which its output will say
                child.stdin.write(encode_order(config))
                child.stdin.flush()
            yield worker
        finally:
            worker.close()
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the process. If the kernel does not let it end, init reaps it later."""
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # input that it has not read
                stream.close()
    try:
        child.wait(0.5)
    except subprocess.TimeoutExpired:
        child.returncode = 0  # else its end would be asked about when this object goes
