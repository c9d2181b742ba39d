"""Signals: SIGTERM and SIGINT stop the server, SIGHUP rereads settings, SIGUSR1 writes its state to the log."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from shim.daemon.reload import Reload
from shim.daemon.state_dump import StateDump

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger(__name__)


@contextmanager
def handling_signals(dump: StateDump, reload: Reload) -> Iterator[threading.Event]:
    """Handle signals inside the block, also during start and stop. Yield the event that a stop signal sets.

    The interpreter writes signal numbers to a socket at once, in whichever thread the kernel interrupts. A Python
    handler would run in the main thread only. That thread may be just about to wait, or another thread may be
    interrupted, so it might not wake; and it may hold any lock.
    """
    stop = threading.Event()
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        for number in (*STOP_SIGNALS, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda _number, _frame: None)
        handling = threading.Thread(
            target=_handle_signals, args=(reader, stop, dump, reload), name="signals", daemon=True
        )
        handling.start()
        try:
            yield stop
        finally:
            signal.set_wakeup_fd(-1)
            writer.close()
            handling.join()


def _handle_signals(signals: socket.socket, stop: threading.Event, dump: StateDump, reload: Reload) -> None:
    while received := signals.recv(1):
        match signal.Signals(received[0]):
            case signal.SIGHUP:
                reload.begin()
            case signal.SIGUSR1:
                dump.write("SIGUSR1")
            case number:
                log.info("stopping", signal=number.name)
                stop.set()
