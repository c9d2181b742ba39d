"""The Docker Engine on its unix socket."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
from shim.engine.bounds import ANSWER, IMAGE, INFO, INSPECT, Rows, Whole
from shim.engine.connection import ApiVersion
from shim.engine.daemon_process import daemon_pid
from shim.engine.decode import ListReader, decoded, read
from shim.engine.failures import Refused, asking, error_from_create_refusal, error_from_start_refusal
from shim.engine.hijack import HijackedStream, hijacked
from shim.engine.interface import AttachOptions, JsonObject, RegistryAuth
from shim.engine.pool import Pool
from shim.engine.session import Params, Session

T = TypeVar("T")

EVENTS_SECONDS = 30.0
"""Bound on the wait for the beginning of the event stream."""

_UNIX = "unix://"

log = structlog.get_logger(__name__)


class DockerEngine:
    """`shim.engine.interface.Engine` over `docker.APIClient`. Thread-safe.

    Nothing is sent before the first call. The API version is chosen with the first connection, and again after the
    daemon has gone away.
    """

    def __init__(self, endpoint: str, *, request_timeout: float) -> None:
        """`endpoint` is `unix:///path`; `request_timeout` in seconds bounds each call, 0 leaves it to the scope."""
        path = endpoint.removeprefix(_UNIX)
        if not endpoint.startswith(_UNIX) or not path.startswith("/"):
            raise InvalidArgument(f"docker endpoint {endpoint!r}: only unix:///path is supported")
        self._timeout = request_timeout or None
        self._pool = Pool(path)
        self._session = Session(self._pool, timeout=self._timeout)
        self._listed_images = ListReader(ImageSummary, what="image")
        self._daemon_pid = 0
        """The last one found."""

    @property
    def api_version(self) -> ApiVersion:
        """See `Engine`; FailedPrecondition when there is no version both sides know."""
        outer = deadline.current()
        scope = Scope(seconds=outer.remaining(self._timeout))
        with self._asking("ask docker's api version"), self._pool.lease(scope=scope, outer=outer) as connection:
            return connection.version

    def ping(self) -> None:
        """See `Engine`."""
        with self._asking("ping docker"):
            self._session.ping()

    def check_components(self) -> None:
        """See `Engine`."""
        with self._asking("ask docker for the versions of its components"):
            self._get("/version", _Versions, into=Whole(ANSWER))

    def info(self) -> EngineInfo:
        """See `Engine`."""
        with self._asking("read docker's info"):
            return self._get("/info", EngineInfo, into=Whole(INFO))

    def daemon_pid(self) -> int:
        """See `Engine`."""
        self._daemon_pid = daemon_pid(self._pool.path, likely=self._daemon_pid)
        return self._daemon_pid

    def create_container(self, *, name: str, body: JsonObject) -> str:
        """See `Engine`."""

        def refused(cause: Refused) -> ShimError:
            return error_from_create_refusal(cause, name=name, image=str(body.get("Image", "")))

        with self._asking(f"create container {name}", refused=refused):
            answer = self._session.create_container_from_config(body, name)  # type: ignore[no-untyped-call] # a gap in the stubs
            created = read(answer, _Created)
        _tell_warnings(created.warnings, of=name)
        return created.id

    def start_container(self, container_id: str) -> None:
        """See `Engine`."""

        def refused(cause: Refused) -> ShimError:
            return error_from_start_refusal(cause, container_id=container_id)

        with self._asking(f"start container {container_id}", refused=refused):
            self._session.start(container_id)

    def stop_container(self, container_id: str, *, grace: int) -> None:
        """See `Engine`; the grace period comes on top of the request timeout."""
        within = None if self._timeout is None else self._timeout + grace
        with asking(f"stop container {container_id}", within=within):
            self._session.stop(container_id, timeout=grace)

    def kill_container(self, container_id: str, *, signal: str) -> None:
        """See `Engine`."""
        with self._asking(f"send {signal} to container {container_id}"):
            self._session.kill(container_id, signal)

    def wait_removed(self, container_id: str) -> None:
        """See `Engine`."""
        what = f"wait for the removal of container {container_id}"
        try:
            with asking(what):
                waited = read(self._session.wait(container_id, condition="removed"), _Waited)
        except NotFound:
            return
        if waited.error is not None and waited.error.message:
            raise ShimError(f"{what}: {waited.error.message}")

    def remove_container(self, container_id: str) -> None:
        """See `Engine`."""
        with self._asking(f"remove container {container_id}"):
            self._session.remove_container(container_id, v=True, force=True)

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        """See `Engine`."""
        with self._asking(f"update container {container_id}"):
            answer = self._post(f"/containers/{_quoted(container_id)}/update", body)
            updated = read(answer, _Updated)
        _tell_warnings(updated.warnings, of=container_id)

    def inspect_container(self, container_id: str) -> ContainerInspect:
        """See `Engine`."""
        with self._asking(f"inspect container {container_id}"):
            path = f"/containers/{_quoted(container_id)}/json"
            return self._get(path, ContainerInspect, into=Whole(INSPECT))

    def list_containers(self) -> list[ContainerSummary]:
        """See `Engine`."""
        with self._asking("list containers"):
            return self._get("/containers/json", list[ContainerSummary], params={"all": 1}, into=Rows())

    def stat_path(self, container_id: str, path: str) -> PathStat | None:
        """See `Engine`."""
        return archive.stat_path(self._session, container_id, path=path, timeout=self._timeout)

    def archive(self, container_id: str, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """See `Engine`."""
        return archive.archive(self._session, container_id, path=path, timeout=self._timeout)

    def create_exec(self, container_id: str, *, body: JsonObject) -> str:
        """See `Engine`."""
        with self._asking(f"prepare an exec in container {container_id}"):
            answer = self._post(f"/containers/{_quoted(container_id)}/exec", body)
            return read(answer, _Created).id

    def start_exec(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> AbstractContextManager[HijackedStream]:
        """See `Engine`."""
        path = f"/exec/{_quoted(exec_id)}/start"
        asked: JsonObject = {"Detach": False, "Tty": tty}
        if size is not None:
            width, height = size
            asked["ConsoleSize"] = [height, width]
        body = msgspec.json.encode(asked)
        return hijacked(self._session, path, what=f"exec {exec_id}", body=body, timeout=self._timeout)

    def resize_exec(self, exec_id: str, *, width: int, height: int) -> None:
        """See `Engine`."""
        with self._asking(f"resize the terminal of exec {exec_id}"):
            self._session.exec_resize(exec_id, height=height, width=width)

    def attach_container(self, container_id: str, *, options: AttachOptions) -> AbstractContextManager[HijackedStream]:
        """See `Engine`."""
        params = {
            "stream": 1,
            "stdin": int(options.stdin),
            "stdout": int(options.stdout),
            "stderr": int(options.stderr),
            "detachKeys": options.detach_keys or None,
        }
        path = f"/containers/{_quoted(container_id)}/attach"
        what = f"attach to container {container_id}"
        return hijacked(self._session, path, what=what, params=params, timeout=self._timeout)

    def resize_container(self, container_id: str, *, width: int, height: int) -> None:
        """See `Engine`."""
        with self._asking(f"resize the terminal of container {container_id}"):
            self._session.resize(container_id, height=height, width=width)

    def inspect_exec(self, exec_id: str) -> ExecInspect:
        """See `Engine`."""
        with self._asking(f"inspect exec {exec_id}"):
            return self._get(f"/exec/{_quoted(exec_id)}/json", ExecInspect, into=Whole(INSPECT))

    def list_images(self) -> list[ImageSummary]:
        """See `Engine`."""
        with self._asking("list images"):
            return self._listed_images.read(self._get("/images/json", list[Any], into=Rows()))

    def inspect_image(self, reference: str) -> ImageInspect:
        """See `Engine`."""
        with self._asking(f"inspect image {reference}"):
            path = f"/images/{_quoted(reference, safe='/:')}/json"
            return self._get(path, ImageInspect, into=Whole(IMAGE))

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        """See `Engine`."""
        messages.pull(self._session, reference, auth=auth, progress=progress)

    def remove_image(self, reference: str) -> None:
        """See `Engine`."""
        with self._asking(f"remove image {reference}"):
            self._session.remove_image(reference, force=True)

    def events(self, *, since: int | None) -> AbstractContextManager[Iterator[Event]]:
        """See `Engine`."""
        # Docker sends the head of this response at once: however long other calls may take, no longer is waited for it.
        timeout = EVENTS_SECONDS if self._timeout is None else min(self._timeout, EVENTS_SECONDS)
        return messages.events(self._session, since=since, timeout=timeout)

    def close(self) -> None:
        """Close the idle connections, and the others when their calls end. Idempotent."""
        self._pool.close()

    def _asking(
        self, what: str, *, refused: Callable[[Refused], ShimError] | None = None
    ) -> AbstractContextManager[None]:
        return asking(what, within=self._timeout, refused=refused)

    def _get(self, path: str, shape: type[T], *, into: Whole | Rows, params: Params | None = None) -> T:
        """Ask for what is read in bounded memory: the SDK would decode all of it, also what nobody asks for."""
        reply = self._session.request("GET", path, params=params, timeout=self._timeout, into=into)
        return decoded(reply.content, shape)

    def _post(self, path: str, body: JsonObject) -> Any:
        """Post what the SDK has no parameter for."""
        return self._session.request("POST", path, data=msgspec.json.encode(body), timeout=self._timeout).json()


class _Versions(msgspec.Struct):
    """Only that they are told counts."""


class _Created(msgspec.Struct, rename="pascal"):
    id: str
    warnings: list[str] | None = None


class _Updated(msgspec.Struct, rename="pascal"):
    warnings: list[str] | None = None


class _WaitError(msgspec.Struct, rename="pascal"):
    message: str = ""


class _Waited(msgspec.Struct, rename="pascal"):
    error: _WaitError | None = None


def _tell_warnings(warnings: list[str] | None, *, of: str) -> None:
    """Keep Docker's words for people. What it has discarded is found by what it has kept, as its words change."""
    for warning in warnings or ():
        log.info("docker warns", of=of, warning=warning)


def _quoted(name: str, *, safe: str = "") -> str:
    """Put an id or reference into a path. NullResource, as the SDK has it, for none at all."""
    if not name:
        raise NullResource("Resource ID was not provided")
    return quote(name, safe=safe)
