"""Copies between the connections of one port-forward session and the pod, all of them in one thread.

A thread for each direction of each connection would cost a session tens of MiB, and the client decides how many
connections there are. Nothing is held here. What the client sends goes to the pod in the thread that receives it, as
far as the pod takes it at once; the rest waits in its channel for this thread, and counts against the client's windows.
The other way bytes go from the pod's socket straight into the room that the client has left.
"""

import select
import socket
from collections.abc import Sequence
from contextlib import suppress

import structlog

from shim.base.wakeup import Waker
from shim.domain.errors import Cancelled
from shim.streaming.channel import Channel
from shim.streaming.spdy import Buffer, NotAllowed, Queued
from shim.streaming.transport import Session

_PIECE = 64 * 1024
_PIECES = 8
"""Pieces of one connection from its pod before the others have their turn."""

log = structlog.get_logger(__name__)


class Link:
    """One connection to the pod and its pair of streams; used by the relay's thread alone."""

    def __init__(self, pod: socket.socket, *, data: Channel, error: Channel, ends_with_pod: bool) -> None:
        """`ends_with_pod`: it is over when the pod has sent all, since the client cannot end its direction."""
        pod.setblocking(False)
        self.pod = pod
        self.fd = pod.fileno()
        self.polled = 0  # events
        self._data = data
        self._error = error
        self._ends_with_pod = ends_with_pod
        self._pod_done = False
        self._client_done = False
        data.pour_into(self._send)

    def turn(self, ready: int) -> int | None:
        """Copy what can be copied now, and return what to poll for; None once the connection is over.

        `ready`: what poll has found. Cancelled when the client has gone, OSError when the pod has broken the connection
        off.
        """
        if self._data.was_reset:  # nothing reads what the pod still sends, and it may never stop
            return None
        # What was polled for and not found cannot be done now.
        unready = self.polled & ~ready if not ready & (select.POLLHUP | select.POLLERR) else 0
        wanted = unready & select.POLLIN or self._downward()
        wanted |= unready & select.POLLOUT or self._upward()
        if self._pod_done and (self._client_done or self._ends_with_pod):
            return None
        return wanted

    def close(self, why: str = "") -> None:
        """End the connection; `why` goes to the client."""
        self._data.pour_into(None)
        self.pod.close()
        end(self._data, self._error, why=why)

    def _downward(self) -> int:
        for _ in range(_PIECES):
            if self._pod_done:
                return 0
            try:
                came = self._from_pod()
            except BlockingIOError:
                return select.POLLIN
            if came is None:
                return 0  # until the session has room again
            if not came:
                self._pod_done = True
                self._data.finish()
                # kubectl closes its user's connection, and ends the data it sends, after the end of this one.
                self._error.finish()
            elif len(came) < _PIECE:
                return select.POLLIN  # most probably there is no more now
        return select.POLLIN

    def _from_pod(self) -> Buffer | None:
        try:
            return self._data.write_from(self._receive)
        except NotAllowed:  # the client has ended this direction, and may go on with the other
            return self._receive(_PIECE)

    def _receive(self, most: int) -> bytes:
        return self.pod.recv(min(most, _PIECE))

    def _upward(self) -> int:
        if self._client_done:
            return 0
        try:
            if not self._data.pour():
                return select.POLLOUT
            if self._data.drained:
                self._client_done = True
                self.pod.shutdown(socket.SHUT_WR)
        except OSError:  # the pod has closed its reading side; what else it writes still counts
            self._client_done = True
            self._data.abandon()
        return 0  # until the client sends more

    def _send(self, pieces: Sequence[Queued]) -> int:
        try:
            return self.pod.sendmsg(pieces)
        except BlockingIOError:
            return 0


def end(data: Channel, error: Channel, *, why: str = "") -> None:
    """End a pair of streams; `why` is what went wrong, for the client."""
    with suppress(Cancelled):
        if why:
            error.write(why.encode(errors="replace"))
    for channel in (data, error):
        channel.abandon()
        channel.finish()


class Relay:
    """The connections of one session, and a way to wake the thread that serves them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: dict[int, Link] = {}
        self._poll = select.poll()
        self._waker = Waker()
        self._poll.register(self._waker, select.POLLIN)
        self._changed = False  # something is to be handled before the next wait
        self._waiting = False  # the thread is, or is about to be, in poll
        session.on_change(self.wake)

    def __len__(self) -> int:
        return len(self._links)

    def add(self, link: Link) -> None:
        """Serve a connection from the next turn on."""
        self._links[link.fd] = link
        self._changed = True

    def wake(self) -> None:
        """Make `wait` return, from any thread."""
        self._changed = True
        if self._waiting:
            self._waiting = False
            self._waker.wake()

    def wait(self, seconds: float | None) -> None:
        """Wait until something has changed, or for so long, and copy what can be copied.

        Cancelled when the client has gone.
        """
        self._waiting = True
        ready = dict(self._poll.poll(0 if self._changed else None if seconds is None else seconds * 1000))
        self._waiting = False
        changed, self._changed = self._changed, False
        if ready.pop(self._waker.fileno(), 0):
            changed = True
            self._waker.drain()
        for fd in list(self._links) if changed else ready:
            self._turn(self._links[fd], ready.get(fd, 0))

    def _turn(self, link: Link, ready: int) -> None:
        try:
            wanted = link.turn(ready)
        except OSError as error:
            log.info("forwarded connection failed", error=error)
            self._remove(link, why=str(error))
            return
        if wanted is None:
            self._remove(link)
        elif wanted != link.polled:
            self._poll_for(link, wanted)

    def _poll_for(self, link: Link, wanted: int) -> None:
        """Poll for events, not at all for none: else poll would return at once for a connection that has broken off."""
        if wanted:
            self._poll.register(link.fd, wanted)
        elif link.polled:
            self._poll.unregister(link.fd)
        link.polled = wanted

    def _remove(self, link: Link, *, why: str = "") -> None:
        self._poll_for(link, 0)
        del self._links[link.fd]
        link.close(why)

    def close(self) -> None:
        """End all connections."""
        self._session.on_change(None)
        for link in list(self._links.values()):
            self._remove(link)
        self._waker.close()
