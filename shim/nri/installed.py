"""Installed plugins: the server starts each program with a connected socket, and ends it at shutdown."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.domain.errors import ShimError, reason_of
from shim.nri.listener import admit
from shim.nri.plugin import Identity, identity_of_file
from shim.nri.plugins import Peer, Plugins

MAX_INSTALLED = 32
"""Maximum programs started."""
CONFIG_LIMIT = 1 << 20
"""Maximum bytes of a plugin's configuration."""
_END_SECONDS = 0.5

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin's program and configuration."""

    identity: Identity
    program: Path
    config: str


def installed_plugins(directory: Path, *, configurations: Path) -> list[InstalledPlugin]:
    """Return the plugins of a directory, sorted by name. An executable that is not a plugin is logged and skipped."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("failed to list NRI plugins", directory=str(directory), reason=reason_of(error))
        return []
    found = []
    for name in names[:MAX_INSTALLED]:
        path = directory / name
        if not os.access(path, os.X_OK):
            continue
        try:
            who = identity_of_file(name)
            found.append(InstalledPlugin(who, path, _configuration(configurations, who)))
        except ShimError as error:
            log.warning("passed over NRI plugin", path=str(path), reason=error)
    if len(names) > MAX_INSTALLED:
        log.warning("too many files among NRI plugins", directory=str(directory), used=MAX_INSTALLED)
    return found


@contextmanager
def running_plugins(found: Sequence[InstalledPlugin], plugins: Plugins) -> Iterator[None]:
    """Run plugins inside the block. Events wait until each plugin has registered or failed."""
    with ExitStack() as ending:
        for each in found:
            try:
                ending.enter_context(_running(each, plugins))
            except OSError as error:
                log.warning("failed to start NRI plugin", path=str(each.program), reason=reason_of(error))
        yield


@contextmanager
def _running(plugin: InstalledPlugin, plugins: Plugins) -> Iterator[None]:
    ours, theirs = socket.socketpair()
    with theirs:
        environment = {
            "NRI_PLUGIN_NAME": plugin.identity.name,
            "NRI_PLUGIN_IDX": plugin.identity.index,
            "NRI_PLUGIN_SOCKET": str(theirs.fileno()),
        }
        try:
            child = subprocess.Popen(
                [plugin.program],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            ours.close()
            raise
    plugins.begin_arrival()
    peer = Peer(identity=plugin.identity, config=plugin.config, pid=child.pid)
    threading.Thread(target=_admit, args=(plugins, ours, peer), name="nri-admit", daemon=True).start()
    try:
        yield
    finally:
        _end(child)


def _admit(plugins: Plugins, ours: socket.socket, peer: Peer) -> None:
    try:
        admit(plugins, ours, peer)
    finally:
        plugins.end_arrival()


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the process group of a plugin."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
            return


def _configuration(directory: Path, who: Identity) -> str:
    """Return the configuration from `NN-name.conf` or `name.conf`; an empty string if neither exists."""
    for name in (f"{who}.conf", f"{who.name}.conf"):
        path = directory / name
        with atomic_files.failing_as(f"read {path}"), suppress(FileNotFoundError):
            return atomic_files.read_regular(path, most=CONFIG_LIMIT).decode(errors="replace")
    return ""
