"""systemd's socket activation, readiness and watchdog: sd_listen_fds(3) and sd_notify(3), without a library."""

import os
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import structlog

from shim.domain.errors import FailedPrecondition, reason_of

_FIRST_FD = 3

log = structlog.get_logger(__name__)


def listening_socket(environ: MutableMapping[str, str]) -> socket.socket:
    """Take over the listening unix socket that systemd passed; FailedPrecondition when it passed none.

    Removes the variables from `environ`, so that CNI plugins and other children do not act on them.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count != "1":
        raise FailedPrecondition(
            f"serve the CRI at fd://: systemd must pass exactly one socket to this process {os.getpid()}, "
            f"it says LISTEN_FDS={count} LISTEN_PID={pid}"
        )
    return _take_over(_FIRST_FD)


def socket_passed_for(path: Path, environ: MutableMapping[str, str]) -> socket.socket | None:
    """Take over the socket that systemd passed if it is bound to `path`; None otherwise.

    Removes the variables from `environ` when it takes the socket. Unit files for cri-dockerd name the path of systemd's
    socket, since cri-dockerd deletes that socket and binds its own.
    """
    if not is_socket_passed(environ):
        return None
    with socket.socket(fileno=os.dup(_FIRST_FD)) as passed:
        name = passed.getsockname() if passed.family == socket.AF_UNIX else ""
    if not isinstance(name, str) or os.path.realpath(name) != os.path.realpath(path):
        return None
    return listening_socket(environ)


def is_socket_passed(environ: Mapping[str, str]) -> bool:
    """Return whether systemd passed exactly one socket to this process."""
    return (environ.get("LISTEN_PID"), environ.get("LISTEN_FDS")) == (str(os.getpid()), "1")


def copy_of_passed_socket() -> socket.socket:
    """Return a duplicate of the socket that systemd passed, so that it survives an exec of another program.

    Raise FailedPrecondition if it is not a listening unix socket.
    """
    return _take_over(os.dup(_FIRST_FD))


def watchdog_seconds(environ: MutableMapping[str, str]) -> float | None:
    """Return within how many seconds systemd expects WATCHDOG=1 from this process; None without a watchdog.

    Like sd_watchdog_enabled(3). Removes the variables from `environ`, so that children do not act on them.
    """
    pid, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
    if pid not in {"", str(os.getpid())} or not microseconds.isascii() or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1e6 or None


def notify(state: str, environ: Mapping[str, str]) -> None:
    """Send `state`, such as `READY=1`, to systemd. Does nothing without NOTIFY_SOCKET, and only logs send errors."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(state.encode(), name)
    except OSError as error:
        log.warning("failed to notify systemd", state=state, socket=address, error=reason_of(error))


def _take_over(descriptor: int) -> socket.socket:
    try:
        taken = socket.socket(fileno=descriptor)
    except OSError as error:
        raise FailedPrecondition(f"serve the CRI at fd://: fd {descriptor}: {reason_of(error)}") from error
    taken.set_inheritable(False)
    listens = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if taken.family != socket.AF_UNIX or taken.type != socket.SOCK_STREAM or not listens:
        taken.detach()
        raise FailedPrecondition(f"serve the CRI at fd://: fd {descriptor} is not a listening unix stream socket")
    return taken
