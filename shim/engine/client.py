"""The client of the Docker Engine on its unix socket."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import structlog
from docker.errors import NullResource

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import InvalidArgument, NotFound, ShimError
from shim.engine import archive, messages
from shim.engine.answers import (
    ContainerInspect,
    ContainerSummary,
    EngineInfo,
    Event,
    ExecInspect,
    ImageInspect,
    ImageSummary,
    PathStat,
    PullProgress,
)
from shim.engine.bounds import IMAGE, INFO, INSPECT, Rows, Whole
from shim.engine.connection import ApiVersion
from shim.engine.daemon_process import daemon_pid
from shim.engine.decode import decoded, read
from shim.engine.errors import ChangedMeanwhile
from shim.engine.failures import Refused, docker_call, error_from_create_refusal, error_from_start_refusal
from shim.engine.hijack import HijackedStream, hijack
from shim.engine.interface import AttachOptions, JsonObject, RegistryAuth
from shim.engine.pool import Pool
from shim.engine.session import DockerSession, Params

T = TypeVar("T")

EVENTS_SECONDS = 30.0
"""Bound on the wait for the head of the event stream."""

_READS = 3
"""Attempts to read an image that changes meanwhile."""

_UNIX = "unix://"

log = structlog.get_logger(__name__)


class DockerEngine:
    """Implements `shim.engine.interface.Engine` over `docker.APIClient`. Thread-safe.

    The first call opens the first connection, which negotiates the API version. It is negotiated again after the daemon
    has gone away.
    """

    def __init__(self, endpoint: str, *, request_timeout: float) -> None:
        """Create a client without a connection.

        `endpoint` is `unix:///path`; `request_timeout` in seconds bounds each call, 0 leaves it to the scope.
        """
        path = endpoint.removeprefix(_UNIX)
        if not endpoint.startswith(_UNIX) or not path.startswith("/"):
            raise InvalidArgument(f"Docker endpoint {endpoint!r}: only unix:///path is supported")
        self._timeout = request_timeout or None
        self._pool = Pool(path)
        self._session = DockerSession(self._pool, timeout=self._timeout)
        self._daemon_pid = 0
        """The last known pid."""

    @property
    def api_version(self) -> ApiVersion:
        """Implement `Engine.api_version`; raise FailedPrecondition without a common version."""
        outer = deadline.current()
        scope = Scope(seconds=outer.remaining(self._timeout))
        with self._docker_call("ask Docker's API version"), self._pool.lease(scope=scope, outer=outer) as connection:
            return connection.version

    @property
    def answered_at(self) -> float:
        """Implement `Engine.answered_at`."""
        return self._pool.answered_at

    def ping(self) -> None:
        """Implement `Engine.ping`."""
        with self._docker_call("ping Docker"):
            self._session.ping()

    def info(self) -> EngineInfo:
        """Implement `Engine.info`."""
        with self._docker_call("read Docker's info"):
            return self._get("/info", EngineInfo, into=Whole(INFO))

    def daemon_pid(self) -> int:
        """Implement `Engine.daemon_pid`."""
        self._daemon_pid = daemon_pid(self._pool.path, likely=self._daemon_pid)
        return self._daemon_pid

    def create_container(self, *, name: str, body: JsonObject) -> str:
        """Implement `Engine.create_container`."""

        def refused(cause: Refused) -> ShimError:
            return error_from_create_refusal(cause, name=name, image=str(body.get("Image", "")))

        with self._docker_call(f"create container {name}", refused=refused):
            answer = self._session.create_container_from_config(body, name)  # type: ignore[no-untyped-call] # a gap in the stubs
            created = read(answer, _Created)
        _log_warnings(created.warnings, container=name)
        return created.id

    def start_container(self, container_id: str) -> None:
        """Implement `Engine.start_container`."""

        def refused(cause: Refused) -> ShimError:
            return error_from_start_refusal(cause, container_id=container_id)

        with self._docker_call(f"start container {container_id}", refused=refused):
            self._session.start(container_id)

    def stop_container(self, container_id: str, *, grace: int) -> None:
        """Implement `Engine.stop_container`; the grace period is added to the request timeout."""
        within = None if self._timeout is None else self._timeout + grace
        with docker_call(f"stop container {container_id}", within=within):
            self._session.stop(container_id, timeout=grace)

    def kill_container(self, container_id: str, *, signal: str) -> None:
        """Implement `Engine.kill_container`."""
        with self._docker_call(f"send {signal} to container {container_id}"):
            self._session.kill(container_id, signal)

    def wait_removed(self, container_id: str) -> None:
        """Implement `Engine.wait_removed`."""
        what = f"wait for the removal of container {container_id}"
        try:
            with docker_call(what):
                waited = read(self._session.wait(container_id, condition="removed"), _Waited)
        except NotFound:
            return
        if waited.error is not None and waited.error.message:
            raise ShimError(f"{what}: {waited.error.message}")

    def remove_container(self, container_id: str) -> None:
        """Implement `Engine.remove_container`."""
        with self._docker_call(f"remove container {container_id}"):
            self._session.remove_container(container_id, v=True, force=True)

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        """Implement `Engine.update_container`."""
        with self._docker_call(f"update container {container_id}"):
            answer = self._post(f"/containers/{_quote(container_id)}/update", body)
            updated = read(answer, _Updated)
        _log_warnings(updated.warnings, container=container_id)

    def inspect_container(self, container_id: str) -> ContainerInspect:
        """Implement `Engine.inspect_container`."""
        with self._docker_call(f"inspect container {container_id}"):
            path = f"/containers/{_quote(container_id)}/json"
            return self._get(path, ContainerInspect, into=Whole(INSPECT))

    def list_containers(self) -> list[ContainerSummary]:
        """Implement `Engine.list_containers`."""
        with self._docker_call("list containers"):
            return self._get("/containers/json", list[ContainerSummary], params={"all": 1}, into=Rows())

    def stat_path(self, container_id: str, path: str) -> PathStat | None:
        """Implement `Engine.stat_path`."""
        return archive.stat_path(self._session, container_id, path=path, timeout=self._timeout)

    def archive(self, container_id: str, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Implement `Engine.archive`."""
        return archive.archive(self._session, container_id, path=path, timeout=self._timeout)

    def create_exec(self, container_id: str, *, body: JsonObject) -> str:
        """Implement `Engine.create_exec`."""
        with self._docker_call(f"prepare an exec in container {container_id}"):
            answer = self._post(f"/containers/{_quote(container_id)}/exec", body)
            return read(answer, _Created).id

    def start_exec(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> AbstractContextManager[HijackedStream]:
        """Implement `Engine.start_exec`."""
        path = f"/exec/{_quote(exec_id)}/start"
        asked: JsonObject = {"Detach": False, "Tty": tty}
        if size is not None:
            width, height = size
            asked["ConsoleSize"] = [height, width]
        body = msgspec.json.encode(asked)
        return hijack(self._session, path, what=f"exec {exec_id}", body=body, timeout=self._timeout)

    def resize_exec(self, exec_id: str, *, width: int, height: int) -> None:
        """Implement `Engine.resize_exec`."""
        with self._docker_call(f"resize the terminal of exec {exec_id}"):
            self._session.exec_resize(exec_id, height=height, width=width)

    def attach_container(self, container_id: str, *, options: AttachOptions) -> AbstractContextManager[HijackedStream]:
        """Implement `Engine.attach_container`."""
        params = {
            "stream": 1,
            "stdin": int(options.stdin),
            "stdout": int(options.stdout),
            "stderr": int(options.stderr),
            "detachKeys": options.detach_keys or None,
        }
        path = f"/containers/{_quote(container_id)}/attach"
        what = f"attach to container {container_id}"
        return hijack(self._session, path, what=what, params=params, timeout=self._timeout)

    def resize_container(self, container_id: str, *, width: int, height: int) -> None:
        """Implement `Engine.resize_container`."""
        with self._docker_call(f"resize the terminal of container {container_id}"):
            self._session.resize(container_id, height=height, width=width)

    def inspect_exec(self, exec_id: str) -> ExecInspect:
        """Implement `Engine.inspect_exec`."""
        with self._docker_call(f"inspect exec {exec_id}"):
            return self._get(f"/exec/{_quote(exec_id)}/json", ExecInspect, into=Whole(INSPECT))

    def list_images(self) -> list[ImageSummary]:
        """Implement `Engine.list_images`."""
        with self._docker_call("list images"):
            return self._get("/images/json", list[ImageSummary], into=Rows())

    def inspect_image(self, reference: str) -> ImageInspect:
        """Implement `Engine.inspect_image`."""
        for _ in range(_READS - 1):
            with suppress(ChangedMeanwhile):
                return self._inspect_image(reference)
        return self._inspect_image(reference)

    def _inspect_image(self, reference: str) -> ImageInspect:
        with self._docker_call(f"inspect image {reference}"):
            path = f"/images/{_quote(reference, safe='/:')}/json"
            return self._get(path, ImageInspect, into=Whole(IMAGE), params={"manifests": 1})

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        """Implement `Engine.pull_image`."""
        messages.pull(self._session, reference, auth=auth, progress=progress)

    def remove_image(self, reference: str) -> None:
        """Implement `Engine.remove_image`."""
        with self._docker_call(f"remove image {reference}"):
            self._session.remove_image(reference)

    def events(self, *, since: int | None) -> AbstractContextManager[Iterator[Event]]:
        """Implement `Engine.events`."""
        # Docker sends the head of this response at once, so the bound is short even if other calls may take long.
        timeout = EVENTS_SECONDS if self._timeout is None else min(self._timeout, EVENTS_SECONDS)
        return messages.events(self._session, since=since, timeout=timeout)

    def connections(self) -> dict[str, object]:
        """Return the numbers of connections, for people."""
        return self._pool.row()

    def close(self) -> None:
        """Close the idle connections now, and busy connections when their calls end. Idempotent."""
        self._pool.close()

    def _docker_call(
        self, what: str, *, refused: Callable[[Refused], ShimError] | None = None
    ) -> AbstractContextManager[None]:
        return docker_call(what, within=self._timeout, refused=refused)

    def _get(self, path: str, shape: type[T], *, into: Whole | Rows, params: Params | None = None) -> T:
        """Get an answer in bounded memory. The SDK would also decode the fields that are not used."""
        reply = self._session.request("GET", path, params=params, timeout=self._timeout, into=into)
        return decoded(reply.content, shape)

    def _post(self, path: str, body: JsonObject) -> Any:
        """Post a body for which the SDK has no parameters."""
        return self._session.request("POST", path, data=msgspec.json.encode(body), timeout=self._timeout).json()


class _Created(msgspec.Struct, rename="pascal"):
    id: str
    warnings: list[str] | None = None


class _Updated(msgspec.Struct, rename="pascal"):
    warnings: list[str] | None = None


class _WaitError(msgspec.Struct, rename="pascal"):
    message: str = ""


class _Waited(msgspec.Struct, rename="pascal"):
    error: _WaitError | None = None


def _log_warnings(warnings: list[str] | None, *, container: str) -> None:
    """Log Docker's warnings for people. Their texts vary; an inspect shows the settings that Docker has discarded."""
    for warning in warnings or ():
        log.info("warning from Docker", container=container, warning=warning)


def _quote(name: str, *, safe: str = "") -> str:
    """Quote an id or reference for a path. Raise NullResource, as the SDK does, if it is empty."""
    if not name:
        raise NullResource("Resource ID was not provided")
    return quote(name, safe=safe)
