"""Whether the server can run commands in containers itself."""

from collections.abc import Iterator
from pathlib import Path

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.units import BOOTED, SERVICE, UNIT_PATH
from shim.domain.errors import ShimError
from shim.own_exec import kernel
from shim.own_exec.client import SERVICE_SOCKET, ExecProgram

_SUBJECT = "exec"
_BY_DOCKER = "Docker runs the commands of exec, probes and hooks"
_SOCKET_UNIT = "pydockershim-exec.socket"
_NO_SERVICE = Path("/nonexistent")


def check_own_exec(config: Config, *, service: Path = SERVICE_SOCKET, booted: Path = BOOTED) -> Iterator[Finding]:
    """Return who runs commands in containers, and why if it is Docker."""
    if not config.own_exec:
        yield Finding("ok", _SUBJECT, f"{_BY_DOCKER}: own_exec is off")
    elif not kernel.KNOWN_MACHINE:
        yield Finding("ok", _SUBJECT, f"{_BY_DOCKER}: the processor is {kernel.MACHINE}")
    elif _is_of_systemd(booted) and not service.is_socket():
        text = f"{_BY_DOCKER}: the server's unit is hardened, and {_SOCKET_UNIT} is not active"
        yield Finding("warn", _SUBJECT, text, f"systemctl start {_SOCKET_UNIT}; pydockershim install writes the unit")
    else:
        yield _started()


def _is_of_systemd(booted: Path) -> bool:
    return booted.is_dir() and any((directory / SERVICE).exists() for directory in UNIT_PATH)


def _started() -> Finding:
    # Not by the service, which has one connection, the server's.
    program = ExecProgram(service=_NO_SERVICE)
    try:
        program.status()
    except ShimError as error:
        return Finding("warn", _SUBJECT, f"{_BY_DOCKER}: {error}", "Linux 5.12 or newer and root are needed")
    finally:
        program.stop()
    return Finding("ok", _SUBJECT, "the server runs the commands of exec, probes and hooks without Docker where it can")
