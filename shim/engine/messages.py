"""Reads Docker's streams of JSON messages: the progress of a pull, and events."""

import base64
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import msgspec
import structlog

from shim.base.times import SECOND
from shim.domain.errors import ResourceExhausted, Unavailable
from shim.domain.references import DEFAULT_TAG, split_tag
from shim.engine.answers import Actor, Event, PullProgress
from shim.engine.bounds import MESSAGE
from shim.engine.failures import docker_call, error_from_pull_failure
from shim.engine.interface import CONTAINER_ACTIONS, IMAGE_ACTIONS, RegistryAuth
from shim.engine.session import DockerSession, ResponseStream

T = TypeVar("T", bound=msgspec.Struct)

CUT = 4096
"""Bytes kept from the beginning of an oversized line."""

log = structlog.get_logger(__name__)

_DONE = "Status: "
"""The prefix of the last message of a successful pull, after which the image is complete and has its name."""
_EVENTS = msgspec.json.encode(
    {"type": ["container", "image"], "event": sorted(CONTAINER_ACTIONS | IMAGE_ACTIONS)}
).decode()
"""A filter that leaves out the three events of each exec and thus of each exec probe."""


class _ErrorDetail(msgspec.Struct):
    message: str = ""


class _PullMessage(msgspec.Struct, rename="camel"):
    """A message of `POST /images/create`: progress, or the error that ends a pull after status 200."""

    id: str = ""
    status: str = ""
    progress_detail: dict[str, Any] | None = None
    error: str = ""
    error_detail: _ErrorDetail | None = None

    @property
    def failure(self) -> str:
        """The text of the error; empty for progress."""
        return (self.error_detail.message if self.error_detail else "") or self.error


def pull(
    session: DockerSession, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
) -> None:
    """Implement `Engine.pull_image`. A cancelled scope closes the connection, which ends Docker's pull.

    This returns before the end of the response: after the last message Docker publishes its event, which takes almost a
    tenth of a pull of a present image.
    """
    repository, tag = split_reference(reference)
    headers = {} if auth is None else {"X-Registry-Auth": _header_from_auth(auth)}
    what = f"pull image {reference}"
    with ExitStack() as held:
        with docker_call(
            what, refused=lambda it: error_from_pull_failure(it.message, reference=reference, status=it.status)
        ):
            # Docker answers once the registry has answered, so only the scope bounds the wait.
            params = {"fromImage": repository, "tag": tag}
            stream = held.enter_context(
                session.stream_response("POST", "/images/create", params=params, headers=headers, timeout=None)
            )

        def too_large(_begin: bytes) -> None:
            raise ResourceExhausted(f"{what}: a message of Docker's has more than {MESSAGE} bytes")

        for message in _messages(stream, _PullMessage, what=what, cut=too_large):
            if stream.is_aborted():
                break  # the rest of a piece that was read before the cancellation
            if message.failure:
                raise error_from_pull_failure(message.failure, reference=reference)
            progress(PullProgress(message.id, message.status, message.progress_detail))
            if message.status.startswith(_DONE):
                stream.abandon()
                return
        if stream.is_aborted():
            stream.scope.check(what)


def split_reference(reference: str) -> tuple[str, str]:
    """Return the repository, and the tag or digest to pull.

    A digest wins over a tag. Without either the tag is `latest`, since Docker would pull all tags.
    """
    name, _, digest = reference.partition("@")
    repository, tag = split_tag(name)
    return repository, digest or tag or DEFAULT_TAG


def _header_from_auth(auth: RegistryAuth) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(auth)).decode()


@contextmanager
def events(session: DockerSession, *, since: int | None, timeout: float | None) -> Iterator[Iterator[Event]]:
    """Implement `Engine.events`; `timeout` in seconds bounds the wait for the response head.

    Docker sends the response head before it subscribes. So without `since` this requests events from the current time,
    by the clock that it shares with Docker. Events in between come from Docker's backlog of 256 events.
    """
    start = time.time_ns() if since is None else since
    params = {"since": f"{start // SECOND}.{start % SECOND:09}", "filters": _EVENTS}
    what = "watch Docker's events"
    with ExitStack() as held:
        with docker_call(what, within=timeout):
            stream = held.enter_context(session.stream_response("GET", "/events", params=params, timeout=timeout))
        yield _events(stream, what)


def _events(stream: ResponseStream, what: str) -> Iterator[Event]:
    yield from _messages(stream, Event, what=what, cut=_event_from_begin)
    stream.scope.check(what)
    if not stream.is_aborted():
        stream.lose()  # only a daemon that stops ends its events
        raise Unavailable(f"{what}: Docker ended the stream")


def _messages(stream: ResponseStream, shape: type[T], *, what: str, cut: Callable[[bytes], T | None]) -> Iterator[T]:
    """Yield the messages of a stream, each a JSON object on a separate line, until it ends or is aborted.

    `cut` makes a message, or None, from the first CUT bytes of a line that is longer than MESSAGE bytes.
    """
    decode = msgspec.json.Decoder(shape).decode
    lines = _Lines()
    while True:
        with docker_call(what):
            piece = stream.read()
            found = [
                cut(line) if oversized else decode(line)
                for line, oversized in lines.take(piece or b"\n")
                if not line.isspace() and line
            ]
        yield from (message for message in found if message is not None)
        if not piece:
            return


class _Lines:
    """Splits bytes into lines, and keeps an incomplete line up to a bound."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._oversized = False

    def take(self, piece: bytes) -> list[tuple[bytes, bool]]:
        """Return the lines that `piece` completes, and for each whether it was cut."""
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            self._keep(end)
            lines.append((bytes(self._rest), self._oversized))
            self._rest.clear()
            self._oversized = False
        self._keep(rest)
        return lines

    def _keep(self, data: bytes) -> None:
        if self._oversized:
            return
        self._rest += data
        if len(self._rest) > MESSAGE:
            del self._rest[CUT:]
            self._oversized = True
            log.warning("message from Docker is too large", limit=MESSAGE)


_BEGIN = re.compile(rb'"Type":"(\w+)","Action":"(\w+)","Actor":\{"ID":"([0-9a-f:sha]+)"')
"""The beginning of an event, before the labels of its object."""


def _event_from_begin(begin: bytes) -> Event | None:
    """Return the event of an oversized line, without attributes and time, so that its object is inspected."""
    found = _BEGIN.search(begin)
    if found is None:
        return None
    kind, action, subject = (part.decode() for part in found.groups())
    return Event(type=kind, action=action, actor=Actor(id=subject))
