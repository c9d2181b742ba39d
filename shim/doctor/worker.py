"""The process that runs each check in a thread.

A thread that waits for a dead volume cannot be ended, and neither can its process. So the checks run in a separate
process, which the command leaves behind if necessary to end in time.
"""

import importlib
import os
import sys
import threading
from typing import BinaryIO

from shim.base import log
from shim.base.decoding import prepare_types
from shim.config.model import Config
from shim.doctor.checks import CHECKS, Check
from shim.doctor.findings import Finding
from shim.doctor.report import Report, decode_order, encode_report


class _Output:
    """Lines of several threads, each written whole."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        with self._lock:
            self._stream.write(encode_report(report))
            self._stream.flush()


def _run(number: int, check: Check, config: Config, output: _Output) -> None:
    try:
        for module in check.modules:
            importlib.import_module(module)
        prepare_types()
        output.send(Report(number, "begun"))
        for finding in check.run(config, os.environ):
            output.send(Report(number, "found", finding))
    except Exception as error:  # noqa: BLE001 - shown as a finding, and the other checks go on
        text = f"the check failed: {type(error).__name__}: {error}"
        advice = "this is a fault of doctor: please report it"
        output.send(Report(number, "found", Finding("warn", check.subject, text, advice)))
    output.send(Report(number, "ended"))


def main() -> None:
    """Run all checks; end when standard input does, for then the findings are not wanted any more."""
    log.configure(level="error", style="json")
    order = decode_order(sys.stdin.buffer.readline())
    output = _Output(sys.stdout.buffer)
    for number, check in enumerate(CHECKS):
        threading.Thread(target=_run, args=(number, check, order.config, output), daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)  # a thread that hangs is not waited for


if __name__ == "__main__":
    main()
