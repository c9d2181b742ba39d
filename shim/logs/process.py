"""The log process from outside: started, fed with orders, and started again when it dies."""

import errno
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from shim.base.heartbeat import Heartbeat
from shim.base.spawn import reap, start_module
from shim.logs.mailbox import Mailbox, Pending
from shim.logs.protocol import MAX_PACKET, Answer, Envelope, Order, Ping

RESTART_LEAST = 0.05
"""Seconds from the death of the process to its successor; doubled each time it dies at once."""
RESTART_MOST = 5.0
STABLE_SECONDS = 2.0
"""A process that lived so long did not die at once."""
STOP_SECONDS = 1.0
"""For the process to end with its socket. It is killed then, which loses nothing: the next one goes on where it was."""
log = structlog.get_logger(__name__)


class LogProcess:
    """Sees to it that there is always one."""

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        words: Sequence[str],
        beginning: Callable[[], list[Order]],
        tick: Callable[[], float | None],
    ) -> None:
        """`words` are arguments of the program.

        `beginning` gives the orders a new process gets first. `tick` is called before each wait, and gives the seconds
        until it wants to be called again; both by the thread of this object.
        """
        self.restarts = 0
        self._mailbox = mailbox
        self._words = tuple(words)
        self._beginning = beginning
        self._tick = tick
        self._child: subprocess.Popen[bytes] | None = None
        self._heartbeat = Heartbeat()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    @property
    def pid(self) -> int:
        """Of the process, 0 while there is none."""
        child = self._child
        return child.pid if child else 0

    def start(self) -> None:
        """Start the process."""
        self._thread.start()

    def stop(self) -> None:
        """End the process; the mailbox must have been closed."""
        self._thread.join()

    def _run(self) -> None:
        pause = RESTART_LEAST
        while not self._mailbox.closed.is_set():
            began = time.monotonic()
            try:
                self._live()
            except Exception:  # ends are held back until a log process answers: there must be a next one
                log.exception("the log process is lost")
            if self._mailbox.closed.is_set():
                return
            self.restarts += 1
            pause = RESTART_LEAST if time.monotonic() - began > STABLE_SECONDS else min(pause * 2, RESTART_MOST)
            self._rest(pause)

    def _rest(self, seconds: float) -> None:
        """Let time pass before the next process. The tick goes on: there may be none for as long as the node lives."""
        end = time.monotonic() + seconds
        while not self._mailbox.closed.is_set() and (left := end - time.monotonic()) > 0:
            try:
                due = self._tick()
            except Exception:
                log.exception("what is due without a log process failed")
                due = None
            self._mailbox.closed.wait(left if due is None else min(left, due))

    def _live(self) -> None:
        """Run one process from its start to its end."""
        try:
            ours, child = self._started()
        except OSError as error:
            log.error("the log process cannot be started", error=error)
            return
        self._child = child
        self._heartbeat = self._heartbeat.of_next()
        try:
            self._mailbox.repeat(self._beginning())
            self._serve(ours, self._heartbeat)
        finally:
            ours.close()
            self._child = None
            self._end(child, lost=self._heartbeat.is_lost)
        if not self._mailbox.closed.is_set():
            log.error("the log process died and is started again", pid=child.pid, code=child.returncode)

    def _end(self, child: subprocess.Popen[bytes], *, lost: bool) -> None:
        """Wait until the process is gone, unless the server stops first: two would be in each other's way."""
        if lost:
            log.error("the log process does not answer and is killed", pid=child.pid)
            child.kill()
        # One that hangs in a file system cannot even be killed; it holds the locks of its logs until it has ended.
        reap(child, seconds=STOP_SECONDS)
        if child.returncode is None and not self._mailbox.closed.is_set():
            log.error("the log process hangs in the kernel: does the disk of the logs answer?", pid=child.pid)
            while child.poll() is None and not self._mailbox.closed.is_set():
                self._rest(1.0)

    def _started(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Start a process; gives our end of the socket pair too. OSError when the node has no more of either."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                orders = theirs.fileno()
                return ours, start_module("shim.logs.worker", "--orders", str(orders), *self._words, pass_fds=[orders])
            except BaseException:
                ours.close()
                raise

    def _serve(self, ours: socket.socket, heartbeat: Heartbeat) -> None:
        """Pass orders and answers until the process, or the server, comes to its end, or it answers no longer."""
        poll = select.poll()
        poll.register(self._mailbox.wake, select.POLLIN)
        while not self._mailbox.closed.is_set():
            poll.register(ours, select.POLLIN | (select.POLLOUT if self._mailbox.first_unsent() else 0))
            due = self._tick()
            left = heartbeat.seconds_left() if due is None else min(due, heartbeat.seconds_left())
            found = dict(poll.poll(max(0.0, left) * 1000 + 1))
            if self._mailbox.wake in found:
                os.eventfd_read(self._mailbox.wake)
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
        """Send as much as the process takes; it may be busy, and nobody waits for it here."""
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
            self._mailbox.sent()
            if refusal:
                # Of this container alone: sent again and again it would stop the logs of all others.
                self._mailbox.take_answer(Answer(ticket=first.ticket, error=refusal))


def _packet(pending: Pending) -> bytes:
    """Encode an order. ValueError for one that the process could not read."""
    packet = msgspec.json.encode(Envelope(pending.ticket, pending.order))
    if len(packet) > MAX_PACKET:
        raise ValueError(f"the paths of its log are too long: {len(packet)} bytes of {MAX_PACKET}")
    return packet
