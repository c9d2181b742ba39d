"""Docker's `daemon.json`: merges the settings that a Kubernetes node needs into the existing file."""

import json
from pathlib import Path
from typing import Any

from shim.checkpoint.root import ORDERS
from shim.config.model import Config
from shim.dockerd.runc import ORDERED_RUNTIME, ORDERS_OPTION
from shim.domain.errors import InvalidArgument
from shim.install.dockerd import Dockerd
from shim.install.layout import OCI_RUNTIME
from shim.install.record import DockerChange, digest

LIVE_RESTORE = "live-restore"
EXEC_OPTIONS = "exec-opts"
RUNTIMES = "runtimes"
_DRIVER = "native.cgroupdriver="
_SWARM = "swarm/docker-state.json"
_UNKNOWN = Dockerd()
_ROOT = Path("/")

Settings = dict[str, Any]

_RUNTIME: Settings = {
    ORDERED_RUNTIME: {
        "path": str(OCI_RUNTIME),
        "runtimeArgs": [ORDERS_OPTION, str(Config().root_directory / ORDERS)],
    }
}
"""The OCI runtime. The server asks Docker where the orders are, so the entry is right for another `root_directory`
too."""


def parse_settings(text: str | None, *, path: str) -> Settings:
    """Parse a daemon.json; a missing or empty file has no settings. Raise InvalidArgument."""
    if text is None or not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}; correct it first, since dockerd refuses it too") from error
    if not isinstance(settings, dict):
        raise InvalidArgument(f"{path} is not a JSON object; correct it first, since dockerd refuses it too")
    return settings


def hindrances(settings: Settings, *, systemd: bool, dockerd: Dockerd = _UNKNOWN, root: Path = _ROOT) -> dict[str, str]:
    """Return the keys that cannot be set, or that keep dockerd from starting; for each the reason and the remedy."""
    found = {}
    if dockerd.values(LIVE_RESTORE)[-1:] == ["false"]:
        found[LIVE_RESTORE] = (
            "the unit of dockerd has --live-restore=false: remove that, and run install --docker again"
        )
    if _is_in_swarm(settings, dockerd, root):
        found[LIVE_RESTORE] = (
            "this Docker is in a swarm, where dockerd does not start with live-restore: docker swarm leave, and run "
            "install --docker again"
        )
    if dockerd.values("add-runtime"):
        found[RUNTIMES] = (
            "the unit of dockerd has --add-runtime, with which dockerd does not start if its file has runtimes: move "
            f"that runtime to {RUNTIMES} in the file, and run install --docker again for pods in user namespaces"
        )
    parents = [*dockerd.values("cgroup-parent"), str(settings.get("cgroup-parent", ""))]
    no_slice = next((parent for parent in parents if parent and not parent.endswith(".slice")), "")
    if systemd and not _names_driver([*_exec_options(settings), *dockerd.values("exec-opt")]):
        if dockerd.values("exec-opt"):
            found[EXEC_OPTIONS] = f"the unit of dockerd has --exec-opt: add --exec-opt {_DRIVER}systemd there"
        elif no_slice:
            found[EXEC_OPTIONS] = (
                f"cgroup-parent {no_slice} of dockerd is not a slice, so it does not start with {_DRIVER}systemd: "
                "name a slice, and run install --docker again"
            )
    return found


def advised(
    settings: Settings, *, systemd: bool, path: str, dockerd: Dockerd = _UNKNOWN, root: Path = _ROOT
) -> Settings:
    """Return the settings to add: live-restore, the OCI runtime, and the systemd cgroup driver unless a driver is set.

    For a key with a JSON object, only the missing entries are returned.
    """
    hindered = hindrances(settings, systemd=systemd, dockerd=dockerd, root=root)
    wanted: Settings = {}
    if LIVE_RESTORE not in hindered and settings.get(LIVE_RESTORE) is not True and not dockerd.values(LIVE_RESTORE):
        wanted[LIVE_RESTORE] = True
    runtimes = settings.get(RUNTIMES, {})
    if not isinstance(runtimes, dict):
        raise InvalidArgument(f"{path}: {RUNTIMES} is not a JSON object; correct it first")
    if RUNTIMES not in hindered and not _RUNTIME.items() <= runtimes.items():
        wanted[RUNTIMES] = _RUNTIME
    options = settings.get(EXEC_OPTIONS, [])
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise InvalidArgument(f"{path}: {EXEC_OPTIONS} is not a list of strings; correct it first")
    if systemd and EXEC_OPTIONS not in hindered and not _names_driver([*options, *dockerd.values("exec-opt")]):
        wanted[EXEC_OPTIONS] = [*options, f"{_DRIVER}systemd"]
    return wanted


def _exec_options(settings: Settings) -> list[str]:
    options = settings.get(EXEC_OPTIONS)
    return [str(option) for option in options] if isinstance(options, list) else []


def _names_driver(options: list[str]) -> bool:
    return any(option.partition("=")[0].strip().lower() == _DRIVER.rstrip("=") for option in options)


def _is_in_swarm(settings: Settings, dockerd: Dockerd, root: Path) -> bool:
    """Return whether dockerd will join a swarm when it starts."""
    place = [str(settings.get("data-root", "/var/lib/docker")), *dockerd.values("data-root")][-1]
    data = root / place.lstrip("/")
    # With userns-remap, Docker keeps its data in a directory named after the user's ids.
    return any((directory / _SWARM).exists() for directory in (data, *data.glob("[0-9]*.[0-9]*")))


def merged(settings: Settings, wanted: Settings) -> str:
    """Return a daemon.json with both; existing keys keep their order."""
    both = dict(settings)
    for key, value in wanted.items():
        both[key] = {**both.get(key, {}), **value} if isinstance(value, dict) else value
    return json.dumps(both, indent=2, ensure_ascii=False) + "\n"


def restored(text: str, change: DockerChange, *, path: str) -> str | None:
    """Return the text without the change, None for no file.

    An unmodified file is restored to the byte. In an edited file, the added keys that still have the added value are
    removed.
    """
    if digest(text.encode()) == change.digest:
        return change.before
    before = parse_settings(change.before, path=path)
    now = parse_settings(text, path=path)
    for key, value in change.added.items():
        if isinstance(value, dict) and isinstance(now.get(key), dict):
            _take_away(value, now[key], before.get(key, {}))
            if not now[key] and key not in before:
                del now[key]
        else:
            _take_away({key: value}, now, before)
    return merged(now, {})


def without_runtime(text: str | None, *, path: str) -> str:
    """Return the text with `runtimes`, even if empty: on a reload Docker ignores a missing key."""
    settings = parse_settings(text, path=path)
    return merged({**settings, RUNTIMES: settings.get(RUNTIMES, {})}, {})


def _take_away(added: Settings, now: Settings, before: Settings) -> None:
    for key, value in added.items():
        if now.get(key) == value:
            del now[key]
            if key in before:
                now[key] = before[key]
