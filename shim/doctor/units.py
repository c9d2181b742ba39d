"""State of the systemd units that run the server, queried with a bound, and only where systemd runs."""

import configparser
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shim.base.spawn import Outcome, run_bounded
from shim.domain.errors import ShimError, reason_of

SERVICE = "pydockershim.service"
SOCKET = "pydockershim.socket"

BOOTED = Path("/run/systemd/system")
"""Exists if systemd is the first process (sd_booted(3))."""
UNIT_PATH = (
    Path("/etc/systemd/system"),
    Path("/run/systemd/system"),
    Path("/usr/local/lib/systemd/system"),
    Path("/usr/lib/systemd/system"),
    Path("/lib/systemd/system"),
)
"""Directories of unit files, by precedence (systemd.unit(5))."""

_SECONDS = 4.0
_START_SECONDS = 3.0
"""How long a start is waited for; a server on an idle machine needs one second."""
_START_INTERVAL = 0.2
_PROPERTIES = (
    *("LoadState", "ActiveState", "SubState", "UnitFileState", "Result"),
    *("ExecMainCode", "ExecMainStatus", "NRestarts", "Listen"),
)
_JOURNAL_LINES = 30
_CAUSE_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit, in systemd's words."""

    load: str = ""
    """`loaded`, `not-found`, `masked`, `bad-setting`, `error`."""
    active: str = ""
    """`active`, `activating`, `inactive`, `failed`..."""
    sub: str = ""
    file: str = ""
    """`enabled`, `disabled`..."""
    result: str = ""
    """`success`, `exit-code`, `signal`, `oom-kill`, `timeout`..."""
    status: int = 0
    """Exit status or number of the signal of the last main process."""
    restarts: int = 0
    listens: str = ""
    """The first address of a socket unit."""

    @property
    def is_installed(self) -> bool:
        """Return whether there is a unit file."""
        return self.load not in {"", "not-found"}

    @property
    def runs(self) -> bool:
        """Return whether its program runs, or is being started."""
        return self.active in {"active", "activating", "reloading"} and self.sub != "auto-restart"

    @property
    def starts_again(self) -> bool:
        """Return whether its program ended by itself and is started again: at this moment, or soon."""
        return self.sub == "auto-restart" or (self.active == "activating" and self.restarts > 0)

    @property
    def is_first_start(self) -> bool:
        """Return whether its program is being started, and has not ended before."""
        return self.active == "activating" and not self.starts_again


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of the server; `trouble` is why systemd could not be queried, else empty."""

    service: Unit = Unit()
    socket: Unit = Unit()
    trouble: str = ""
    booted: bool = True
    """This machine runs systemd."""
    cause: str = ""
    """The last error of the server, where its unit is in trouble."""


def units_of_systemd(environ: Mapping[str, str], *, booted: Path = BOOTED) -> Units:
    """Ask systemd about the units of the server."""
    if not booted.is_dir():
        return Units(booted=False, trouble="this machine does not run systemd")
    try:
        service, socket = _settled(environ)
    except ShimError as error:
        return Units(trouble=str(error))
    in_trouble = service.restarts or (service.status and not service.runs)
    cause = _last_error(environ) if in_trouble else ""
    return Units(service=service, socket=socket, cause=cause)


def _settled(environ: Mapping[str, str]) -> tuple[Unit, Unit]:
    """Ask until a first start has ended, for some seconds: halfway through, it is neither good nor bad."""
    until = time.monotonic() + _START_SECONDS
    while True:
        service, socket = _show(environ)
        if not service.is_first_start or time.monotonic() >= until:
            return service, socket
        time.sleep(_START_INTERVAL)


def _show(environ: Mapping[str, str]) -> tuple[Unit, Unit]:
    shown = _run(["systemctl", "show", SERVICE, SOCKET, f"--property={','.join(_PROPERTIES)}"], environ)
    if shown.returncode != 0:
        said = shown.stderr.decode(errors="replace").strip()
        raise ShimError(f"systemctl show: {said or f'exit status {shown.returncode}'}")
    return units_from_show(shown.stdout.decode(errors="replace"))


def units_from_show(text: str) -> tuple[Unit, Unit]:
    """Parse `systemctl show` of two units: lines `Key=Value`, with an empty line between the units."""
    blocks = [_properties(block) for block in text.strip().split("\n\n")]
    service, socket = [_unit(block) for block in (*blocks, {}, {})][:2]
    return service, socket


def listens_by_file(directories: Sequence[Path] = UNIT_PATH) -> str:
    """Return the address in the file of the socket unit; empty where there is none that can be read."""
    for directory in directories:
        parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
        try:
            parsed.read_string((directory / SOCKET).read_bytes().decode())
        except (OSError, ValueError, configparser.Error):
            continue
        return parsed.get("Socket", "ListenStream", fallback="").strip()
    return ""


def _properties(block: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition("=")
        found.setdefault(name, value)  # of several addresses the first
    return found


def _unit(found: Mapping[str, str]) -> Unit:
    return Unit(
        load=found.get("LoadState", ""),
        active=found.get("ActiveState", ""),
        sub=found.get("SubState", ""),
        file=found.get("UnitFileState", ""),
        result=found.get("Result", ""),
        status=_number(found.get("ExecMainStatus", "")),
        restarts=_number(found.get("NRestarts", "")),
        listens=found.get("Listen", "").removesuffix(" (Stream)"),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _last_error(environ: Mapping[str, str]) -> str:
    """Return the last error in the log of the server; empty where the journal has none."""
    words = ["journalctl", "--unit", SERVICE, "--lines", str(_JOURNAL_LINES), "--output=cat", "--quiet"]
    try:
        journal = _run(words, environ)
    except ShimError:
        return ""  # the advice names the journal
    lines = reversed(journal.stdout.decode(errors="replace").split("\n"))
    return next((cause[:_CAUSE_CHARACTERS] for line in lines if (cause := _error_in(line))), "")


def _error_in(line: str) -> str:
    """Return the error of a line: the last words of a start that failed, or an error in the log of the server."""
    _, found, error = line.partition("pydockershim: error: ")
    if found:
        return error
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict) or entry.get("level") not in {"error", "critical"}:
        return ""
    return ": ".join(str(entry[key]) for key in ("event", "error") if entry.get(key))


def _run(words: Sequence[str], environ: Mapping[str, str]) -> Outcome:
    program = shutil.which(words[0], path=environ.get("PATH"))
    if program is None:
        raise ShimError(f"{words[0]} is not on the PATH")
    plain = {**environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_URLIFY": "0"}
    try:
        return run_bounded(
            Path(program),
            arguments=["--no-pager", *words[1:]],
            environment=plain,
            stdin=b"",
            timeout=_SECONDS,
            what=" ".join(words[:2]),
        )
    except OSError as error:
        raise ShimError(f"{words[0]}: {reason_of(error)}") from error
