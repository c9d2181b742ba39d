"""The endpoint at which clients find the server: a path of its own, or a socket that systemd holds.

gRPC is always bound to a socket in a new private directory. An endpoint connects clients to it:

* `PathEndpoint` moves the bound socket to the configured path. So it appears there complete, with its mode, and gRPC
  never deletes what stands at that path, as it does when it binds (and unbinds) a path itself.
* `shim.cri.relay.Relay` relays connections from the socket of systemd, since gRPC's Python API cannot take over a
  socket that is listening already.
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
"""Write access to this socket is root access to the node."""

_SOCKET_PATH_BYTES = 107
"""Limit of the kernel for the path of a socket, without the NUL (unix(7))."""

_PROBE_SECONDS = 2.0


class Endpoint(Protocol):
    """Where clients connect to the server."""

    def prepare(self) -> Path:
        """Check that the endpoint can be opened; return the parent for the private directory."""
        ...

    def open(self, bound: Path) -> None:
        """Connect clients to the socket at `bound`, which is moved away or deleted."""
        ...

    @property
    def address(self) -> Path:
        """Where a client in this process connects as others do, from `open` to `close`."""
        ...

    def close(self) -> None:
        """Accept no new client; those that are connected stay. Idempotent."""
        ...

    def wait_empty(self, seconds: float) -> None:
        """Wait until the last responses were sent, at most `seconds`, once the server has ended."""
        ...


def open_endpoint(endpoint: str, *, environ: MutableMapping[str, str]) -> Endpoint:
    """Return the endpoint for `unix:///path`, or for `fd://` with the socket named (and removed) in `environ`.

    Where systemd holds the socket at that path, it is used, whichever form names it.
    """
    if endpoint == ACTIVATION:
        return Relay(listening_socket(environ))
    path = Path(endpoint.removeprefix("unix://"))
    passed = socket_passed_for(path, environ)
    return PathEndpoint(path) if passed is None else Relay(passed)


class PathEndpoint:
    """A socket at a path, which is there from `open` to `close`."""

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            raise InvalidArgument(f"serve the CRI at {path}: a socket path has at most {_SOCKET_PATH_BYTES} bytes")
        self._path = path
        self._ours: tuple[int, int] | None = None

    def prepare(self) -> Path:
        """Make the directory and remove a dead socket; FailedPrecondition when the path is in use."""
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._ensure_free()
        except OSError as error:
            raise FailedPrecondition(f"serve the CRI at {self._path}: {reason_of(error)}") from error
        return self._path.parent

    def open(self, bound: Path) -> None:
        """Move the socket here."""
        bound.chmod(_SOCKET_MODE)
        self._ours = _identity(bound)
        bound.rename(self._path)

    @property
    def address(self) -> Path:
        """Return the path."""
        return self._path

    def close(self) -> None:
        """Remove the socket, unless another one was put in its place."""
        with contextlib.suppress(FileNotFoundError):
            if self._ours is not None and _identity(self._path) == self._ours:
                self._path.unlink()
        self._ours = None

    def wait_empty(self, seconds: float) -> None:
        """Return at once: clients talk to gRPC itself, which has sent its responses when it ends."""

    def _ensure_free(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise FailedPrecondition(f"serve the CRI at {self._path}: what is there is not a socket")
            if _answers(self._path):
                raise FailedPrecondition(f"serve the CRI at {self._path}: another server answers there")
            self._path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _answers(path: Path) -> bool:
    """Return whether something listens; anything but a clear refusal counts as a server that is busy."""
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
