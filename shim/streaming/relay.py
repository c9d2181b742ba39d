"""Copies data between all connections of a port-forward session and the pod in a single thread.

The client chooses the number of connections, and two threads per connection would take tens of MiB. The relay does not
buffer. The receiving thread passes the client's input to the pod as far as the pod takes it at once. The rest waits in
the channel for the relay's thread, and counts against the client's windows. Data of the pod is read only if the client
has room for it.
"""

import select
import socket
from collections.abc import Sequence
from contextlib import suppress

import structlog

from shim.base.wakeup import Waker
from shim.domain.errors import Cancelled
from shim.streaming.channel import Channel
from shim.streaming.session import Session
from shim.streaming.spdy import Buffer, NotAllowed, Queued

_PIECE = 64 * 1024
_PIECES = 8
"""Maximum pieces read from a connection to the pod per turn."""

log = structlog.get_logger(__name__)


class Link:
    """A connection to the pod and its pair of streams. Only the relay's thread uses it."""

    def __init__(self, pod: socket.socket, *, data: Channel, error: Channel, ends_with_pod: bool) -> None:
        """`ends_with_pod`: the connection ends with the pod's output, because the client cannot close its direction."""
        pod.setblocking(False)
        self.pod = pod
        self.fd = pod.fileno()
        self.polled = 0  # events
        self._data = data
        self._error = error
        self._ends_with_pod = ends_with_pod
        self._pod_done = False
        self._client_done = False
        data.set_sink(self._send)

    def turn(self, ready: int) -> int | None:
        """Copy in both directions without waiting. Return the events to poll for, or None if the connection is over.

        `ready` are the events that a poll has reported. Raise Cancelled if the client is gone, OSError if the pod has
        reset the connection.
        """
        if self._data.was_reset:  # nobody reads the pod's output, which may be endless
            return None
        # A polled direction that is not ready cannot be served now.
        unready = self.polled & ~ready if not ready & (select.POLLHUP | select.POLLERR) else 0
        wanted = unready & select.POLLIN or self._downward()
        wanted |= unready & select.POLLOUT or self._upward()
        if self._pod_done and (self._client_done or self._ends_with_pod):
            return None
        return wanted

    def close(self, why: str = "") -> "Ending":
        """Close the connection to the pod; `why` is for the client."""
        self._data.set_sink(None)
        self.pod.close()
        return Ending(self._data, self._error, why=why)

    def _downward(self) -> int:
        for _ in range(_PIECES):
            if self._pod_done:
                return 0
            try:
                data = self._from_pod()
            except BlockingIOError:
                return select.POLLIN
            if data is None:
                return 0  # until the session has room again
            if not data:
                self._pod_done = True
                self._data.finish()
                # kubectl closes its local connection and the data stream only after the end of the error stream.
                self._error.finish()
            elif len(data) < _PIECE:
                return select.POLLIN  # a short piece: there is probably no more data now
        return select.POLLIN

    def _from_pod(self) -> Buffer | None:
        try:
            return self._data.write_from(self._receive)
        except NotAllowed:  # the client has closed this direction, and may still send
            return self._receive(_PIECE)

    def _receive(self, most: int) -> bytes:
        return self.pod.recv(min(most, _PIECE))

    def _upward(self) -> int:
        if self._client_done:
            return 0
        try:
            if not self._data.flush_to_sink():
                return select.POLLOUT
            if self._data.drained:
                self._client_done = True
                self.pod.shutdown(socket.SHUT_WR)
        except OSError:  # the pod has stopped reading, but may still write
            self._client_done = True
            self._data.abandon()
        return 0  # until the client sends more

    def _send(self, pieces: Sequence[Queued]) -> int:
        try:
            return self.pod.sendmsg(pieces)
        except BlockingIOError:
            return 0


class Ending:
    """The end of a pair of streams, once the client has taken the reason, if any, on the error stream."""

    def __init__(self, data: Channel, error: Channel, *, why: str = "") -> None:
        self._data = data
        self._error = error
        self._left = memoryview(why.encode(errors="replace"))
        data.abandon()

    def attempt(self) -> bool:
        """Send as much of the reason as the client takes now. Return whether the streams have ended."""
        with suppress(Cancelled, NotAllowed):
            while self._left:
                sent = self._error.write_from(lambda room: self._left[:room])
                if sent is None:
                    return False
                self._left = self._left[len(sent) :]
        self.finish()
        return True

    def finish(self) -> None:
        """End the streams at once."""
        for channel in (self._data, self._error):
            channel.abandon()
            channel.finish()


class Relay:
    """The connections of a session. Any thread may call `wake`, only the relay's thread all other methods."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: dict[int, Link] = {}
        self._endings: list[Ending] = []
        self._poll = select.poll()
        self._waker = Waker()
        self._poll.register(self._waker, select.POLLIN)
        self._changed = False  # all connections must be served before the next wait
        self._waiting = False  # the thread is, or is about to be, in poll
        session.on_change(self.wake)

    def __len__(self) -> int:
        return len(self._links) + len(self._endings)

    def end(self, ending: Ending) -> None:
        """End a pair of streams, now or once the client has taken the reason."""
        if not ending.attempt():
            self._endings.append(ending)

    def add(self, link: Link) -> None:
        """Serve a connection from the next `wait` on."""
        self._links[link.fd] = link
        self._changed = True

    def wake(self) -> None:
        """Make `wait` return. Any thread may call this."""
        self._changed = True
        if self._waiting:
            self._waiting = False
            self._waker.wake()

    def wait(self, seconds: float | None) -> None:
        """Wait up to `seconds` for a change, then serve the connections. Raise Cancelled if the client is gone."""
        self._waiting = True
        ready = dict(self._poll.poll(0 if self._changed else None if seconds is None else seconds * 1000))
        self._waiting = False
        changed, self._changed = self._changed, False
        if ready.pop(self._waker.fileno(), 0):
            changed = True
            self._waker.drain()
        if changed:
            self._endings = [ending for ending in self._endings if not ending.attempt()]
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
        """Poll for the events `wanted`. For no events, unregister the connection: a poll always reports POLLHUP."""
        if wanted:
            self._poll.register(link.fd, wanted)
        elif link.polled:
            self._poll.unregister(link.fd)
        link.polled = wanted

    def _remove(self, link: Link, *, why: str = "") -> None:
        self._poll_for(link, 0)
        del self._links[link.fd]
        self.end(link.close(why))

    def close(self) -> None:
        """End all connections."""
        self._session.on_change(None)
        for ending in self._endings:
            ending.finish()
        for link in list(self._links.values()):
            self._remove(link)
        self._waker.close()
