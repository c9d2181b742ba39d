"""Docker's part of an installation: checks and changes daemon.json, and restores it if Docker does not come up."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shim.config.model import Config
from shim.dockerd.runc import ORDERED_RUNTIME
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError
from shim.engine.answers import EngineInfo
from shim.install import daemon_json, layout
from shim.install.dockerd import Dockerd
from shim.install.node import Node
from shim.install.pods import docker_info, is_docker_empty
from shim.install.record import DockerChange, digest
from shim.install.steps import Step
from shim.install.systemd import DOCKER, Systemd

_PATH = layout.DAEMON_JSON
_RELOAD_SECONDS = 10.0
_RELOAD_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSetup:
    """The change of Docker's settings in an installation."""

    node: Node
    systemd: Systemd
    environ: Mapping[str, str]
    earlier: DockerChange | None
    """The change of an earlier installation."""
    note: Callable[[DockerChange | None], None]
    """Records the change before it is made; None withdraws it."""
    endpoint: str = Config().docker_endpoint

    def steps(self) -> Iterator[Step]:
        """Yield the steps. Before the first, raise InvalidArgument or FailedPrecondition if dockerd would not start."""
        dockerd = self.systemd.dockerd() if self.systemd.is_running else Dockerd()
        self._check_place(dockerd)
        text = self.node.read_text(_PATH)
        settings = daemon_json.parse_settings(text, path=str(_PATH))
        systemd = self.systemd.is_running if self.node.is_this_machine else self.systemd.is_there
        hindrances = daemon_json.hindrances(settings, systemd=systemd, dockerd=dockerd, root=self.node.root)
        wanted = daemon_json.advised(settings, systemd=systemd, path=str(_PATH), dockerd=dockerd, root=self.node.root)
        merged = daemon_json.merged(settings, wanted)
        if wanted and (said := dockerd.refusal(merged, path=_PATH, environ=self.environ)):
            raise InvalidArgument(
                f"dockerd would not start with {', '.join(wanted)} in {_PATH}: {said}; correct it first"
            )
        for words in hindrances.values():
            yield Step(f"to do: {words}")
        if wanted:
            yield from self._change(text, wanted, merged)

    def _check_place(self, dockerd: Dockerd) -> None:
        places = dockerd.values("config-file")
        if places and Path(places[-1]) != _PATH:
            raise FailedPrecondition(f"{DOCKER} reads {places[-1]} (--config-file) and not {_PATH}: set both there")

    def _change(self, before: str | None, wanted: daemon_json.Settings, merged: str) -> Iterator[Step]:
        earlier = self.earlier
        first, added = (before, wanted) if earlier is None else (earlier.before, {**earlier.added, **wanted})
        change = DockerChange(before=first, digest=digest(merged.encode()), added=added)
        keys = ", ".join(wanted)

        def write() -> None:
            self.note(change)
            self.node.write(_PATH, merged.encode())

        yield Step(f"set   {keys} in {_PATH}", write)
        if not self.systemd.is_running or not self.systemd.is_active(DOCKER):
            return
        needs_restart = daemon_json.EXEC_OPTIONS in wanted
        if needs_restart and is_docker_empty(self.endpoint):
            yield Step(f"run   systemctl restart {DOCKER}", lambda: self._apply(self._restart, before, keys))
            return
        if wanted.keys() != {daemon_json.EXEC_OPTIONS}:
            act = partial(self._reload, wanted)
            yield Step(f"run   systemctl reload {DOCKER}", lambda: self._apply(act, before, keys))
        if needs_restart:
            yield Step("to do: containers run, so Docker is not restarted: drain the node, systemctl restart docker")

    def _apply(self, act: Callable[[], None], before: str | None, keys: str) -> None:
        """Have Docker read its settings; on failure restore the file and raise FailedPrecondition."""
        try:
            act()
        except ShimError as error:
            said = self.systemd.last_words(DOCKER) or str(error)
            raise FailedPrecondition(
                f"Docker did not accept {keys} in {_PATH}, so the file was restored, {self._put_back(before)}: {said}"
            ) from error

    def _put_back(self, before: str | None) -> str:
        """Restore the file; return whether Docker runs with it."""
        if before is None:
            self.node.remove(_PATH)
        else:
            self.node.write(_PATH, before.encode())
        self.note(self.earlier)
        if self.systemd.is_active(DOCKER):
            return "and Docker runs"
        try:
            self._restart()
        except ShimError as error:
            return f"and Docker does not start with that either ({error})"
        return "and Docker runs again"

    def _restart(self) -> None:
        # systemd starts Docker's unit at most three times a minute: another start would fail, and leave Docker down.
        self.systemd.run("reset-failed", DOCKER)
        self.systemd.run("restart", DOCKER)

    def _reload(self, wanted: daemon_json.Settings) -> None:
        reload_docker(self.systemd, self.endpoint, lambda info: _not_taken(info, wanted))


def reload_docker(systemd: Systemd, endpoint: str, missing: Callable[[EngineInfo], str]) -> None:
    """Have a running Docker read its file, and wait until nothing is missing.

    Raise FailedPrecondition with what is missing: Docker logs why it cannot read a file, but reports no error.
    """
    systemd.run("reload", DOCKER)
    end = time.monotonic() + _RELOAD_SECONDS
    while (info := docker_info(endpoint)) and (said := missing(info)):
        if time.monotonic() > end:
            raise FailedPrecondition(f"{said} {_RELOAD_SECONDS:g} s after the reload")
        time.sleep(_RELOAD_TICK_SECONDS)


def knows_runtime(info: EngineInfo) -> bool:
    """Return whether Docker has the OCI runtime of an installation."""
    runtime = (info.runtimes or {}).get(ORDERED_RUNTIME)
    return runtime is not None and runtime.path == str(layout.OCI_RUNTIME)


def _not_taken(info: EngineInfo, wanted: daemon_json.Settings) -> str:
    if daemon_json.LIVE_RESTORE in wanted and not info.live_restore_enabled:
        return "live-restore is still off"
    if daemon_json.RUNTIMES in wanted and not knows_runtime(info):
        return f"there is still no runtime {ORDERED_RUNTIME}"
    return ""
