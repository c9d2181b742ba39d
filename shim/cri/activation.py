"""Socket activation, readiness and watchdog of systemd: sd_listen_fds(3) and sd_notify(3), which need no library."""

import os
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import structlog

from shim.domain.errors import FailedPrecondition, reason_of

_FIRST_FD = 3

log = structlog.get_logger(__name__)


def listening_socket(environ: MutableMapping[str, str]) -> socket.socket:
    """Take over the one listening unix socket that systemd has passed; FailedPrecondition when there is none.

    The variables are removed from `environ`: CNI plugins and other children must not take them for theirs.
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
    """Take over the socket that systemd has passed if it is the one at `path`; None otherwise.

    The variables are removed from `environ` in the first case. Unit files for cri-dockerd name the path of the socket
    that systemd holds, and cri-dockerd then deletes that and makes its own.
    """
    if not is_socket_passed(environ):
        return None
    with socket.socket(fileno=os.dup(_FIRST_FD)) as passed:
        name = passed.getsockname() if passed.family == socket.AF_UNIX else ""
    if not isinstance(name, str) or os.path.realpath(name) != os.path.realpath(path):
        return None
    return listening_socket(environ)


def is_socket_passed(environ: Mapping[str, str]) -> bool:
    """Return whether systemd has passed one socket to this process."""
    return (environ.get("LISTEN_PID"), environ.get("LISTEN_FDS")) == (str(os.getpid()), "1")


def copy_of_passed_socket() -> socket.socket:
    """Return the socket that systemd has passed, which stays open for another program that this process becomes.

    FailedPrecondition where it is no listening unix socket.
    """
    return _take_over(os.dup(_FIRST_FD))


def watchdog_seconds(environ: MutableMapping[str, str]) -> float | None:
    """Return the seconds in which systemd wants to hear WATCHDOG=1 from this process; None where it does not.

    As sd_watchdog_enabled(3). The variables are removed from `environ`, as children must not take them for theirs.
    """
    pid, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
    if pid not in {"", str(os.getpid())} or not microseconds.isascii() or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1e6 or None


def notify(state: str, environ: Mapping[str, str]) -> None:
    """Send `state`, such as `READY=1`, to systemd: no-op without NOTIFY_SOCKET; send errors are only logged."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
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
