"""The signals of the server, in a separate process, since handlers belong to a process."""

import subprocess
import sys

_PROGRAM = """
import os, signal, sys, threading
import pytest
from shim.config.model import Config
from shim.daemon.reload import Reload
from shim.daemon.signals import handling_signals
from shim.daemon.state_dump import StateDump
from tests.threads import no_thread_for
reload = Reload(Config(), reread=Config)
with handling_signals(StateDump(), reload) as stop, pytest.MonkeyPatch.context() as short:
    no_thread_for("reload", short)
    os.kill(os.getpid(), signal.SIGHUP)
    threading.Event().wait(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(0 if stop.wait(5) else "SIGTERM is not handled any more")
"""


def test_a_sighup_for_which_no_thread_can_be_started_keeps_sigterm_working() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
