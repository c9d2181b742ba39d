"""Docker's `daemon.json`: two settings that a node of Kubernetes wants, merged into what is there."""

import json
from typing import Any

from shim.domain.errors import InvalidArgument
from shim.install.record import DockerChange, digest

LIVE_RESTORE = "live-restore"
EXEC_OPTIONS = "exec-opts"
_DRIVER = "native.cgroupdriver="

Settings = dict[str, Any]


def parse_settings(text: str | None, *, path: str) -> Settings:
    """Read a daemon.json; no file and an empty one are no settings. Raise InvalidArgument."""
    if text is None or not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{path} is no JSON: {error}; correct it first, since dockerd refuses it too") from error
    if not isinstance(settings, dict):
        raise InvalidArgument(f"{path} holds no JSON object; correct it first, since dockerd refuses it too")
    return settings


def advised(settings: Settings, *, systemd: bool, path: str) -> Settings:
    """Return the keys to set: live-restore, and the cgroup driver of systemd unless a driver is named already."""
    wanted: Settings = {}
    if settings.get(LIVE_RESTORE) is not True:
        wanted[LIVE_RESTORE] = True
    options = settings.get(EXEC_OPTIONS, [])
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise InvalidArgument(f"{path}: {EXEC_OPTIONS} is no list of texts; correct it first")
    if systemd and not any(option.startswith(_DRIVER) for option in options):
        wanted[EXEC_OPTIONS] = [*options, f"{_DRIVER}systemd"]
    return wanted


def merged(settings: Settings, wanted: Settings) -> str:
    """Return the text of a daemon.json with both; the order of what is there stays."""
    return json.dumps({**settings, **wanted}, indent=2, ensure_ascii=False) + "\n"


def restored(text: str, change: DockerChange, *, path: str) -> str | None:
    """Return the text without the change, None for no file.

    A file that was not changed since becomes what it was, to the byte. From another one the added keys are taken
    away where they still have the added value.
    """
    if digest(text.encode()) == change.digest:
        return change.before
    before = parse_settings(change.before, path=path)
    now = parse_settings(text, path=path)
    for key, value in change.added.items():
        if now.get(key) == value:
            del now[key]
            if key in before:
                now[key] = before[key]
    return merged(now, {})
