"""Maps errors of the Engine to domain errors. No other module reads Docker's error texts.

Docker's status codes are coarse: 409 is a taken name, a removal in progress or a stopped container, and 404 at a create
may concern the image or a network. The text resolves an ambiguous code. The texts are from Engine 20.10 to 28.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from docker.errors import NullResource

from shim.base import deadline
from shim.domain import references
from shim.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ShimError,
    Unavailable,
    Unsupported,
)
from shim.engine.bounds import TooLarge
from shim.engine.connection import ConnectionLost, TimedOut
from shim.engine.errors import (
    ChangedMeanwhile,
    LogOptionsClash,
    MountNameTooLong,
    NameConflict,
    NoCommand,
    RegistryDenied,
    RegistryErrorUnknown,
    RegistryUnavailable,
    RemovalInProgress,
    TooManyRequests,
)

MAX_MESSAGE = 4096
"""Characters kept from the text of an error."""

NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding bytes that are not JSON, have another shape, or are nested too deeply."""


ADVICE = (
    "Docker hangs or is overloaded: see journalctl --unit docker, and systemctl restart docker if it does not recover"
)


class Refused(Exception):
    """The Engine answered with an error status. `message` is its text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (status {status})")
        self.status = status
        self.message = message


@contextmanager
def docker_call(
    what: str, *, within: float | None = None, refused: Callable[[Refused], ShimError] | None = None
) -> Iterator[None]:
    """Map every failure of the block to a domain error whose text begins with `what`, the operation and its id.

    `within` is the request timeout in seconds, for the message; `refused` maps error statuses for calls that
    `error_from_refusal` does not suit.
    """
    scope = deadline.current()
    scope.check(what)
    try:
        yield
    except Refused as cause:
        raise (refused(cause) if refused else error_from_refusal(cause, what=what)) from cause
    except TimedOut as cause:
        scope.check(what)
        limit = "in time" if within is None else f"within {within:g} s"
        raise DeadlineExceeded(f"{what}: Docker did not answer {limit}") from cause
    except ConnectionLost as cause:
        scope.check(what)
        raise Unavailable(f"{what}: Docker cannot be reached: {cause}") from cause
    except TooLarge as cause:
        raise ResourceExhausted(f"{what}: {cause}") from cause
    except NOT_JSON as cause:
        raise ShimError(f"{what}: Docker's answer cannot be read: {cause}") from cause
    except NullResource as cause:
        raise InvalidArgument(f"{what}: the id is empty") from cause


@contextmanager
def answered_within(seconds: float, *, what: str) -> Iterator[None]:
    """Bound the calls to Docker in the block to `seconds`.

    Raise DeadlineExceeded, which names `what` and says that Docker did not answer. If the outer scope ends first, raise
    its error.
    """
    outer = deadline.current()
    try:
        with deadline.bound(seconds):
            yield
    except DeadlineExceeded as cause:
        outer.check(what)
        shown = round(max(seconds, 0.0), 1 if seconds >= 1 else 2)
        raise DeadlineExceeded(f"{what}: Docker did not answer within {shown:g} s; {ADVICE}") from cause


class _Body(msgspec.Struct):
    message: str


def refusal_message(content: bytes) -> str:
    """Return the text of an error response: `{"message": ...}`, or plain text from a proxy or an old Engine."""
    try:
        text = msgspec.json.decode(content, type=_Body).message
    except NOT_JSON:
        text = content.decode(errors="replace")
    return text.strip()[:MAX_MESSAGE] or "no reason given"


_HOLDER = re.compile(r'is already in use by container "?(?P<holder>[0-9a-f]*)')
_REMOVING = re.compile(r"removal of container \S+ is already in progress")
_BEING_REMOVED = re.compile(r"\bRWLayer of container \S+ is unexpectedly nil")
"""The answer of Engine 28 for files of a container that it is removing."""
_CHANGED = re.compile(r"\bdata changed during operation, retry\b")
"""The answer of Engine 29 for an image whose names change meanwhile."""
_NOT_RUNNING = re.compile(r"\bContainer \S+ is not running\b")
"""Engine 20.10 has no separate status for a created exec whose container has exited."""
_KIND_BY_TEXT: tuple[tuple[re.Pattern[str], type[ShimError]], ...] = (
    (_BEING_REMOVED, NotFound),
    (_CHANGED, ChangedMeanwhile),
    (_NOT_RUNNING, FailedPrecondition),
)
_VERSION = re.compile(r"client version \S+ is too (new|old)")


def is_about_version(refused: Refused) -> bool:
    """Return whether the daemon does not support the API version of the request, as after a replacement of dockerd."""
    return refused.status == 400 and _VERSION.search(refused.message) is not None


def error_from_refusal(refused: Refused, *, what: str) -> ShimError:
    """Return the domain error for a refusal; `what` is the operation and its id."""
    message = refused.message
    text = f"{what}: {message}"
    if refused.status == 409:
        return _error_from_conflict(text, message)
    if is_about_version(refused):
        return Unavailable(text)
    for pattern, kind in _KIND_BY_TEXT:
        if pattern.search(message):
            return kind(text)
    if refused.status == 404 and message == "page not found":
        return Unsupported(f"{what}: this Docker has no such call")  # the object may exist
    kinds: dict[int, type[ShimError]] = {
        400: InvalidArgument,
        404: NotFound,
        429: ResourceExhausted,
        501: Unsupported,
        503: Unavailable,
    }
    return kinds.get(refused.status, ShimError)(text)


def _error_from_conflict(text: str, message: str) -> ShimError:
    if named := _HOLDER.search(message):
        return NameConflict(text, holder=named["holder"])
    if _REMOVING.search(message):
        return RemovalInProgress(text)
    return FailedPrecondition(text)


_NO_COMMAND = re.compile(r"^no command specified$", re.IGNORECASE)
_LONG_MOUNT_NAME = re.compile(r"/rootfs/\w+/[0-9a-f]{256,}: file name too long$")
"""An image mount, from Engine 29 on."""
_LOG_OPTIONS = re.compile(r"^logger: max-buffer-size option is only supported with")
_NO_DIRECTORY = re.compile(r"^Cannot mkdir: ")


def error_from_create_refusal(refused: Refused, *, name: str, image: str) -> ShimError:
    """Return the error of a create; a 404 concerns the image or another object in the body."""
    what = f"create container {name}"
    if _NO_COMMAND.search(refused.message):
        return NoCommand(f"{what}: image {image} names no command either")
    if _LONG_MOUNT_NAME.search(refused.message):
        return MountNameTooLong(f"{what}: Docker names the mount of an image by its path, and the name is too long")
    if _LOG_OPTIONS.search(refused.message):
        return LogOptionsClash(f"{what}: log-opts of dockerd: {refused.message}")
    if _NO_DIRECTORY.search(refused.message):
        return FailedPrecondition(f"{what}: its working directory: {refused.message}")
    if refused.status != 404:
        return error_from_refusal(refused, what=what)
    is_image = "image" in refused.message.lower()
    return (
        NotFound(f"{what}: image {image}: {refused.message}")
        if is_image
        else FailedPrecondition(f"{what}: {refused.message}")
    )


_START_PREFIXES = (
    "failed to create task for container: ",
    "failed to create shim task: ",
    "failed to create shim: ",
    "failed to start shim: ",
    "OCI runtime create failed: ",
    "OCI runtime start failed: ",
    "runc create failed: ",
    "runc start failed: ",
    "unable to start container process: ",
    "error during container init: ",
)
"""The prefixes that runc, containerd and Docker add to an error, in Engine 20.10 to 28."""

_UNKNOWN_CODE = ": unknown"
"""The gRPC code of containerd's answer, which old Engines put between the text and Docker's advice."""


def plain_start_error(text: str) -> str:
    """Return the cause without the prefixes, such as `exec: "x": executable file not found in $PATH`."""
    cause = text.strip()
    while layer := next((layer for layer in _START_PREFIXES if cause.startswith(layer)), ""):
        cause = cause.removeprefix(layer)
    if cause == text.strip():
        return text
    cause = cause.removesuffix(_UNKNOWN_CODE).replace(f"{_UNKNOWN_CODE}: Are you trying to", ": Are you trying to")
    return cause or text


def error_from_start_refusal(refused: Refused, *, container_id: str) -> ShimError:
    """Return the error of a start, with the text of runc or the daemon.

    Newer Engines answer 400 for a missing command and 404 for a missing network. Both are failures of the container,
    not of the argument; only a missing container is NotFound.
    """
    what = f"start container {container_id}"
    cause = plain_start_error(refused.message)
    if refused.status == 404 and container_id not in refused.message:
        return FailedPrecondition(f"{what}: {cause}")
    if refused.status in {400, 500}:
        return ShimError(f"{what}: {cause}")
    return error_from_refusal(refused, what=what)


_UNREACHABLE = re.compile(
    r"""
      dial\ tcp | no\ such\ host | connection\ (refused|reset|timed\ out) | i/o\ timeout | TLS\ handshake\ timeout
    | Client\.Timeout | context\ deadline\ exceeded | network\ is\ unreachable | no\ route\ to\ host | \bEOF\b
    | server\ gave\ HTTP\ response\ to\ HTTPS\ client | temporary\ failure\ in\ name\ resolution
    | \b5\d\d\ (Internal\ Server\ Error|Bad\ Gateway|Service\ Unavailable|Gateway\ Time-?out)
    | HTTP\ status:?\ 5\d\d | status(\ code)?:?\ 5\d\d\b
    # A registry or proxy chooses the words behind the number.
    | unexpected\ status\b.*:\ 5\d\d\b
    # The containerd image store omits the code if the registry sends a text.
    | service\ unavailable | error\ from\ registry:\ unavailable
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TOO_MANY = re.compile(
    r"status( code)?:? 429\b|too ?many ?requests|HTTP 429\b|\brate (limit|exceeded)",
    re.IGNORECASE,
)
_HTTPS_FALLBACK = re.compile(r"sent an HTTP request to an HTTPS server", re.IGNORECASE)
"""For a registry on loopback, Engine 20.10 falls back to plain HTTP after any failure of HTTPS, and reports only the
failure of HTTP."""
_LIKELY = "credentials may be missing or wrong"
_DENIED = re.compile(
    r"unauthorized|\bdenied\b|authentication required|authorization failed|no basic auth|forbidden"
    r"|incorrect username or password|HTTP 40[13] response body|unexpected status\b.*: 40[13]\b",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"manifest unknown|name unknown|not found|does not exist|no matching manifest for|HTTP 404 response body",
    re.IGNORECASE,
)
_NO_REASON = re.compile(r"^\s*unknown:?\s*$", re.IGNORECASE)
"""Docker's text for a refusal without a text. Docker does not report its status either."""

_PULL_FAILURES: tuple[tuple[re.Pattern[str], int | None, type[ShimError]], ...] = (
    (_TOO_MANY, 429, TooManyRequests),
    (_UNREACHABLE, None, RegistryUnavailable),
    (_DENIED, None, RegistryDenied),
    (_MISSING, 404, NotFound),
    (_NO_REASON, None, RegistryErrorUnknown),
)
"""The error for each text or status of the Engine's answer; the first match counts."""


def _without_names(message: str, image: references.Reference) -> str:
    """Remove the image in all spellings of Docker and of registries, the longest first."""
    tag_or_digest = image.digest or image.tag
    full = (str(image), image.familiar(), f"/v2/{image.path}/manifests/{tag_or_digest}", f"/v2/{image.path}/")
    # A name of one word may be part of the registry's text: "denied: requested access to the resource is denied".
    bare = (name for name in (image.name, image.familiar_name, image.path) if "/" in name)
    for spelling in (*full, *bare):
        message = message.replace(spelling, "")
    return message


def error_from_pull_failure(message: str, *, reference: str, status: int = 0) -> ShimError:
    """Return the error of a failed pull, classified by the text of the answer or of the progress stream.

    The order matters: "pull access denied ... repository does not exist or may require 'docker login'" is a denial, and
    "dial tcp ...: connect: permission denied" is not. The names of the image are removed first, since they may contain
    any of the searched words.
    """
    text = f"pull image {reference}: {message}"
    searched = _without_names(message, references.parse(reference))
    if _HTTPS_FALLBACK.search(searched):
        return RegistryErrorUnknown(
            f"{text} (HTTPS was tried first, and Docker does not report why it failed: {_LIKELY})"
        )
    for pattern, code, kind in _PULL_FAILURES:
        if pattern.search(searched) or status == code:
            return kind(text)
    return (InvalidArgument if status == 400 else ShimError)(text)
