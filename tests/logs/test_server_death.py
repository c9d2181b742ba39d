"""The log process when its server is killed, with real processes."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

SERVER = """
import signal
from shim.logs.supervisor import LogSupervisor

logs = LogSupervisor(level="error", style="json")
logs.start(on_drained=print)
while (state := logs.stats()).figures is None:  # until the process has answered
    pass
print(state.pid, flush=True)
signal.pause()
"""


def test_a_stopped_log_process_dies_with_its_server() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        worker = int(server.stdout.readline())
        ended = os.pidfd_open(worker)
        os.kill(worker, signal.SIGSTOP)
        server.kill()
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    try:
        assert poll.poll(60_000)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(ended, signal.SIGKILL)
        os.close(ended)
