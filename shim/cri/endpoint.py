"""The endpoint at which clients find the server: a socket at a configured path, or a socket that systemd holds.

gRPC always binds a socket in a new private directory. An endpoint connects clients to that socket:

* `PathEndpoint` moves the bound socket to the configured path. The socket appears there with its final mode, and gRPC
  never deletes a file at that path, as it would when it binds or unbinds the path itself.
* `shim.cri.relay.Relay` relays connections from systemd's socket, since gRPC's Python API cannot take over a listening
  socket.
"""

import contextlib
import os
import socket
import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Protocol

from shim.cri.activation import listening_socket, socket_passed_for
from shim.cri.relay import Relay
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of

ACTIVATION = "fd://"

_SOCKET_MODE = 0o600
"""Whoever can write to this socket has root access to the node."""

_SOCKET_PATH_BYTES = 107
"""The kernel's limit for the path of a socket, without the NUL (unix(7))."""

_PROBE_SECONDS = 2.0


class Endpoint(Protocol):
    """Where clients connect to the server."""

    def prepare(self) -> Path:
        """Check that the endpoint can be opened; return the directory for the private directory."""
        ...

    def open(self, bound: Path) -> None:
        """Connect clients to the socket at `bound`, and move or delete that file."""
        ...

    @property
    def address(self) -> Path:
        """The path at which a client in this process connects like other clients, between `open` and `close`."""
        ...

    def close(self) -> None:
        """Accept no new clients; connected clients stay. Idempotent."""
        ...

    def wait_empty(self, seconds: float) -> None:
        """After the server has ended, wait at most `seconds` until the last responses are sent."""
        ...


def open_endpoint(endpoint: str, *, environ: MutableMapping[str, str]) -> Endpoint:
    """Return the endpoint for `unix:///path`, or for `fd://` with the socket that the variables of `environ` announce.

    If systemd holds the socket at `unix:///path`, that socket is used. Removes the variables of a socket it takes.
    """
    if endpoint == ACTIVATION:
        return Relay(listening_socket(environ))
    path = Path(endpoint.removeprefix("unix://"))
    passed = socket_passed_for(path, environ)
    return PathEndpoint(path) if passed is None else Relay(passed)


class PathEndpoint:
    """A socket at a path, from `open` to `close`."""

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise InvalidArgument(f"serve the CRI at {path}: a socket path has at most {_SOCKET_PATH_BYTES} bytes")
        self._path = path
        self._ours: tuple[int, int] | None = None

    def prepare(self) -> Path:
        """Make the directory and remove a stale socket. Raise FailedPrecondition if the path is in use."""
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._ensure_free()
        except OSError as error:
            raise FailedPrecondition(f"serve the CRI at {self._path}: {reason_of(error)}") from error
        return self._path.parent

    def open(self, bound: Path) -> None:
        """Move the bound socket to the path."""
        bound.chmod(_SOCKET_MODE)
        self._ours = _identity(bound)
        bound.rename(self._path)

    @property
    def address(self) -> Path:
        """Return the path."""
        return self._path

    def close(self) -> None:
        """Remove the socket, unless another file has replaced it."""
        with contextlib.suppress(FileNotFoundError):
            if self._ours is not None and _identity(self._path) == self._ours:
                self._path.unlink()
        self._ours = None

    def wait_empty(self, seconds: float) -> None:
        """Return at once: clients talk to gRPC directly, and gRPC sends all responses before it ends."""

    def _ensure_free(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise FailedPrecondition(f"serve the CRI at {self._path}: the existing file is not a socket")
            if _answers(self._path):
                raise FailedPrecondition(f"serve the CRI at {self._path}: another server answers there")
            self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _answers(path: Path) -> bool:
    """Return whether a server listens. A connect that times out counts as a busy server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except TimeoutError:
            return True
        except OSError as error:
            raise FailedPrecondition(f"serve the CRI at {path}: is it in use? {reason_of(error)}") from error
    return True
