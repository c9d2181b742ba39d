"""Stands for systemctl and systemd-run: `python -m integration.conformance.node_e2e.units`.

The first argument is the name of the program that is stood for. A unit is a directory with the unit's command and its
pid. Kubernetes' node suite runs its kubelet as a unit, and stops and starts it with systemctl.
"""

import fnmatch
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

HOME = Path("/run/units")
_VERSION = "systemd 252"
_STOP_SECONDS = 90
_NO_SUCH_UNIT = 5
_INACTIVE = 3
_NO_SCOPES = 1
"""A kubelet that gets no scope mounts volumes itself."""


class Command(msgspec.Struct, frozen=True):
    """The command of a unit."""

    argv: list[str]
    log: str


def run_as_unit(arguments: Sequence[str]) -> int:
    """Do as systemd-run does: start a program as a unit, without waiting for its end."""
    if "--version" in arguments:
        print(_VERSION)
        return 0
    if "--scope" in arguments:
        return _NO_SCOPES
    name, log, rest = "", os.devnull, list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-p":
            property_, _, value = rest.pop(0).partition("=")
            log = value.partition(":")[2] if property_ == "StandardError" else log
        elif option.startswith("--unit="):
            name = option.partition("=")[2].removesuffix(".service")
    home = HOME / name
    home.mkdir(parents=True, exist_ok=True)
    # systemd would expand variables and specifiers, so the caller has doubled these signs.
    argv = [word.replace("%%", "%").replace("$$", "$") for word in rest]
    (home / "command.json").write_bytes(msgspec.json.encode(Command(argv, log)))
    _start(home)
    return 0


def control(arguments: Sequence[str]) -> int:
    """Do as systemctl does."""
    verb, *patterns = [word for word in arguments if not word.startswith("-")]
    if verb == "list-units":
        return _list(patterns, running_only="--state=running" in arguments)
    chosen = [home for pattern in patterns for home in _units(pattern.removesuffix(".service"))]
    if verb == "mask":
        return 0
    if not chosen:
        print(f"Unit {' '.join(patterns)} not found.", file=sys.stderr)
        return _NO_SUCH_UNIT
    if verb == "is-active":
        return 0 if all(map(_is_running, chosen)) else _INACTIVE
    for home in chosen:
        _VERBS[verb](home)
    return 0


def stop_all() -> None:
    """Stop every unit."""
    for home in _units("*"):
        _remove(home)


def _list(patterns: Sequence[str], *, running_only: bool) -> int:
    for home in _units("*"):
        state = "running" if _is_running(home) else "exited"
        wanted = not patterns or any(fnmatch.fnmatch(home.name, pattern) for pattern in patterns)
        if wanted and (state == "running" or not running_only):
            print(f"{home.name}.service loaded active {state} {home.name}")
    return 0


def _units(pattern: str) -> list[Path]:
    """Return the units that match, newest first: their names end with the time of their start."""
    return sorted((path for path in HOME.glob("*") if fnmatch.fnmatch(path.name, pattern)), reverse=True)


def _start(home: Path) -> None:
    if _is_running(home):
        return
    command = msgspec.json.decode((home / "command.json").read_bytes(), type=Command)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawnp(command.argv[0], command.argv, os.environ, file_actions=actions, setsid=True)
    (home / "pid").write_text(str(pid))


def _stop(home: Path) -> None:
    with _handle(home) as handle:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            if not select.select([handle], [], [], _STOP_SECONDS)[0]:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [])


def _kill(home: Path) -> None:
    """Ask a unit to end, as `systemctl kill` does, without waiting."""
    with _handle(home) as handle:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGTERM)


def _restart(home: Path) -> None:
    _stop(home)
    _start(home)


def _remove(home: Path) -> None:
    """Stop a unit for good: a transient unit is gone then."""
    _stop(home)
    shutil.rmtree(home)


def _is_running(home: Path) -> bool:
    with _handle(home) as handle:
        return handle is not None


@contextmanager
def _handle(home: Path) -> Iterator[int | None]:
    """Yield a descriptor of the process of a unit, None if it has ended."""
    try:
        handle = os.pidfd_open(int((home / "pid").read_text()))
    except (FileNotFoundError, ProcessLookupError):
        yield None
        return
    try:
        yield None if select.select([handle], [], [], 0)[0] else handle
    finally:
        os.close(handle)


_VERBS: dict[str, Callable[[Path], None]] = {
    "start": _start,
    "stop": _remove,
    "restart": _restart,
    "kill": _kill,
    "reset-failed": lambda _: None,
}

if __name__ == "__main__":
    _, stood_for, *rest_of_line = sys.argv
    sys.exit({"systemctl": control, "systemd-run": run_as_unit}[stood_for](rest_of_line))
