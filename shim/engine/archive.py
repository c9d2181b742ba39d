"""Reads files of a container by the archive API, which also works for containers that have never been started."""

import base64
import binascii
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

import msgspec

from shim.domain.errors import ShimError
from shim.engine.answers import PathStat
from shim.engine.bounds import INSPECT, Whole
from shim.engine.failures import NOT_JSON, Refused, docker_call
from shim.engine.session import DockerSession, Reply, ResponseStream

_STAT = "x-docker-container-path-stat"


def stat_path(session: DockerSession, container_id: str, *, path: str, timeout: float | None) -> PathStat | None:
    """Implement `Engine.stat_path`."""
    with docker_call(_what(container_id, path), within=timeout):
        try:
            reply = session.request("HEAD", _url(container_id), params={"path": path}, timeout=timeout)
        except Refused as refused:
            # The answer to a HEAD has no text. A second request shows whether the path or the container is missing,
            # or why Docker failed.
            if refused.status == 404:
                session.request("GET", _inspect_url(container_id), into=Whole(INSPECT), timeout=timeout)
                return None
            with session.stream_response("GET", _url(container_id), params={"path": path}, timeout=timeout):
                raise
        return _stat_from_header(reply, what=_what(container_id, path))


@contextmanager
def archive(
    session: DockerSession, container_id: str, *, path: str, timeout: float | None
) -> Iterator[Iterator[bytes]]:
    """Implement `Engine.archive`; `timeout` in seconds bounds the wait for the response head."""
    what = _what(container_id, path)
    with ExitStack() as held:
        with docker_call(what, within=timeout):
            stream = held.enter_context(
                session.stream_response("GET", _url(container_id), params={"path": path}, timeout=timeout)
            )
        yield _pieces(stream, what)


def _pieces(stream: ResponseStream, what: str) -> Iterator[bytes]:
    while True:
        with docker_call(what):
            piece = stream.read()
        if not piece:
            stream.scope.check(what)
            return
        yield piece


def _stat_from_header(reply: Reply, *, what: str) -> PathStat:
    try:
        return msgspec.json.decode(base64.b64decode(reply.head.headers.get(_STAT, "")), type=PathStat)
    except (binascii.Error, *NOT_JSON) as cause:
        raise ShimError(f"{what}: Docker's answer cannot be read: {cause}") from cause


def _what(container_id: str, path: str) -> str:
    return f"read {path} in container {container_id}"


def _inspect_url(container_id: str) -> str:
    return f"/containers/{quote(container_id, safe='')}/json"


def _url(container_id: str) -> str:
    return f"/containers/{quote(container_id, safe='')}/archive"
