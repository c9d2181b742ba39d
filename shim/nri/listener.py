"""Listens for plugins. The server does not take the socket from another listener, such as the node's containerd."""

import errno
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.domain.errors import FailedPrecondition, ShimError, reason_of
from shim.nri.connection import Disconnected
from shim.nri.plugins import Peer, Plugins, peer_pid

_BACKLOG = 16
_PROBE_SECONDS = 1.0
_RETRY_MILLISECONDS = 30_000
"""Interval between attempts to listen while another program has the socket."""
_PAUSE_MILLISECONDS = 1000
"""Back-off after a failed accept, because the socket stays readable while no descriptor is free."""

log = structlog.get_logger(__name__)


class Listener:
    """Accepts plugins in a thread. Retries while another program has the socket. Thread-safe."""

    def __init__(self, path: Path, plugins: Plugins) -> None:
        self._path = path
        self._plugins = plugins

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Accept plugins inside the block."""
        reader, writer = socket.socketpair()
        listening = self._listen()
        thread = threading.Thread(target=self._work, args=(listening, reader), name="nri-accept", daemon=True)
        thread.start()
        try:
            yield
        finally:
            writer.close()
            thread.join()
            reader.close()

    def _listen(self) -> socket.socket | None:
        try:
            listening = _bound(self._path)
        except ShimError as error:
            if str(error) != self._plugins.problem:
                log.warning("NRI plugins cannot connect", path=str(self._path), reason=error)
            self._plugins.problem = str(error)
            return None
        self._plugins.problem = ""
        return listening

    def _work(self, listening: socket.socket | None, stopping: socket.socket) -> None:
        # Not `select`, which fails for descriptors above 1023.
        ends, ready = select.poll(), select.poll()
        for poll in (ends, ready):
            poll.register(stopping, select.POLLIN)
        while listening is None:
            if ends.poll(_RETRY_MILLISECONDS):
                return
            listening = self._listen()
        made = _identity(self._path)
        with listening:
            ready.register(listening, select.POLLIN)
            while all(descriptor != stopping.fileno() for descriptor, _ in ready.poll()):
                if not self._accept(listening):
                    ends.poll(_PAUSE_MILLISECONDS)
            if made is not None and _identity(self._path) == made:
                self._path.unlink(missing_ok=True)

    def _accept(self, listening: socket.socket) -> bool:
        """Accept the next plugin. Return False if no descriptor or thread is free, or the plugin has gone."""
        try:
            opened, _ = listening.accept()
        except OSError as error:
            log.warning("failed to accept NRI plugin", reason=reason_of(error))
            return False
        try:
            threading.Thread(target=admit, args=(self._plugins, opened), name="nri-admit", daemon=True).start()
        except RuntimeError as error:  # no thread can be started
            log.warning("failed to accept NRI plugin", reason=error)
            opened.close()
            return False
        return True


def admit(plugins: Plugins, opened: socket.socket, peer: Peer | None = None) -> None:
    """Admit a plugin; log the reason if that fails."""
    try:
        plugins.admit(opened, peer or Peer(pid=peer_pid(opened)))
    except Disconnected as error:
        log.debug("NRI plugin has gone before it registered", reason=error)
    except ShimError as error:
        log.warning("NRI plugin refused", reason=error)


def listening_pid(path: Path) -> int | None:
    """Return the pid of the process that listens on a socket, or None. Raise OSError if the socket cannot be probed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ECONNREFUSED}:
                return None
            raise
        return peer_pid(probe)


def _bound(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, with mode 0600.

    Raise FailedPrecondition, which names the process that already listens there.
    """
    what = f"listen for NRI plugins on {path}"
    try:
        if (pid := listening_pid(path)) is not None:
            raise FailedPrecondition(f"{what}: process {pid} ({process_name(pid)}) listens there")
    except OSError as error:
        raise FailedPrecondition(f"{what}: {reason_of(error)}") from error
    with atomic_files.failing_as(what):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(0o600)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
    return listening


def process_name(pid: int) -> str:
    """Return the name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        return "unknown"


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a socket file, to detect its replacement by another program; None if it is missing."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None
