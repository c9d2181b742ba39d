"""Runs the log process: starts it, sends it orders, and restarts it when it dies or hangs."""

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from shim.base.backoff import backoff
from shim.base.child_process import ChildProcess
from shim.base.heartbeat import Heartbeat
from shim.logs.mailbox import Mailbox, Pending
from shim.logs.protocol import MAX_PACKET, Answer, Envelope, Order, Ping

MIN_RESTART_SECONDS = 0.05
"""Back-off before a restart of the process; doubled each time the process dies within STABLE_SECONDS."""
RESTART_CAP_SECONDS = 5.0
STABLE_SECONDS = 2.0
"""A process that has run for this time resets the back-off."""
STOP_SECONDS = 1.0
"""Time for the process to exit after its socket is closed. Then it is killed. No output is lost, because the next
process continues."""
log = structlog.get_logger(__name__)


class LogProcess:
    """Keeps the log process running."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        arguments: Sequence[str],
        first_orders: Callable[[], list[Order]],
        tick: Callable[[], float | None],
    ) -> None:
        """`arguments` are passed to the program.

        `first_orders` returns the first orders for a new process. `tick` is called before each wait, and returns the
        seconds until its next call is due, or None. Both are called in this object's thread.
        """
        self.restarts = 0
        self._mailbox = mailbox
        self._arguments = tuple(arguments)
        self._first_orders = first_orders
        self._tick = tick
        self._child: ChildProcess | None = None
        self._heartbeat = Heartbeat()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    @property
    def pid(self) -> int:
        """The pid of the process; 0 while it does not run."""
        child = self._child
        return child.pid if child else 0

    def start(self) -> None:
        """Start the thread, which starts the process."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the process. The mailbox must be closed."""
        self._thread.join()

    def _run(self) -> None:
        deaths = 0  # consecutive processes that died within STABLE_SECONDS
        while not self._mailbox.closed.is_set():
            began = time.monotonic()
            try:
                self._live()
            except Exception:  # exits are held back until a log process answers, so it must be restarted
                log.exception("lost connection to log process")
            if self._mailbox.closed.is_set():
                return
            self.restarts += 1
            deaths = 0 if time.monotonic() - began > STABLE_SECONDS else deaths + 1
            self._pause(backoff(deaths + 1, first=MIN_RESTART_SECONDS, longest=RESTART_CAP_SECONDS))

    def _pause(self, seconds: float) -> None:
        """Wait `seconds`, and keep calling `tick`, because the process may never start on this node."""
        end = time.monotonic() + seconds
        while not self._mailbox.closed.is_set() and (left := end - time.monotonic()) > 0:
            try:
                due = self._tick()
            except Exception:
                log.exception("periodic work of logs failed")
                due = None
            self._mailbox.closed.wait(left if due is None else min(left, due))

    def _live(self) -> None:
        """Run a process until it ends."""
        try:
            child = ChildProcess("shim.logs.worker", "--parent", str(os.getpid()), *self._arguments)
        except OSError as error:
            log.error("cannot start log process", error=error)
            return
        self._child = child
        self._heartbeat = self._heartbeat.of_next()
        try:
            self._mailbox.repeat(self._first_orders())
            self._serve(child.socket, self._heartbeat)
        finally:
            child.socket.close()
            self._child = None
            self._end(child, lost=self._heartbeat.is_lost)
        if not self._mailbox.closed.is_set():
            log.error("log process died, restarting", pid=child.pid, code=child.exit_code)

    def _end(self, child: ChildProcess, *, lost: bool) -> None:
        """Wait until the process has ended, or the server stops: two processes must not write to the same logs."""
        if lost:
            log.error("log process does not answer, killing it", pid=child.pid)
            child.kill()
        # A process that hangs in a file system cannot be killed, and keeps the locks of its logs.
        child.reap(seconds=STOP_SECONDS)
        if child.exit_code is None and not self._mailbox.closed.is_set():
            log.error("log process hangs in the kernel: check the disk of the logs", pid=child.pid)
            while child.exit_code is None and not self._mailbox.closed.is_set():
                self._pause(1.0)

    def _serve(self, ours: socket.socket, heartbeat: Heartbeat) -> None:
        """Send orders and receive answers until the process ends or does not answer, or the server stops."""
        poll = select.poll()
        poll.register(self._mailbox.waker, select.POLLIN)
        while not self._mailbox.closed.is_set():
            poll.register(ours, select.POLLIN | (select.POLLOUT if self._mailbox.first_unsent() else 0))
            due = self._tick()
            left = heartbeat.seconds_left() if due is None else min(due, heartbeat.seconds_left())
            found = dict(poll.poll(max(0.0, left) * 1000 + 1))
            if self._mailbox.waker.fileno() in found:
                self._mailbox.waker.drain()
            try:
                if found.get(ours.fileno(), 0) & ~select.POLLOUT:
                    if not self._receive(ours):
                        return
                    heartbeat.note_answer()
                elif heartbeat.is_lost:
                    return
                if heartbeat.is_ping_due:
                    heartbeat.note_ping()
                    self._mailbox.put(Ping())
                self._send(ours)
            except (BrokenPipeError, ConnectionResetError):
                return

    def _receive(self, ours: socket.socket) -> bool:
        packet = ours.recv(MAX_PACKET)
        if packet:
            self._mailbox.take_answer(msgspec.json.decode(packet, type=Answer))
        return bool(packet)

    def _send(self, ours: socket.socket) -> None:
        """Send orders until the socket is full. Do not wait."""
        while (first := self._mailbox.first_unsent()) is not None:
            refusal = ""
            try:
                ours.send(_packet(first), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ValueError as error:
                refusal = str(error)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                refusal = str(error)
            self._mailbox.mark_sent()
            if refusal:
                # Fail only this order, because retrying it would block the logs of all other containers.
                self._mailbox.take_answer(Answer(ticket=first.ticket, error=refusal))


def _packet(pending: Pending) -> bytes:
    """Encode an order. Raise ValueError if it is longer than MAX_PACKET."""
    packet = msgspec.json.encode(Envelope(pending.ticket, pending.order))
    if len(packet) > MAX_PACKET:
        raise ValueError(f"the paths of its log are too long: {len(packet)} bytes of {MAX_PACKET}")
    return packet
