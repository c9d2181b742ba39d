import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain import references
from shim.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ShimError,
    Unavailable,
    Unsupported,
)
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
from shim.engine.failures import (
    MAX_MESSAGE,
    Refused,
    answered_within,
    docker_call,
    error_from_create_refusal,
    error_from_pull_failure,
    error_from_refusal,
    error_from_start_refusal,
    plain_start_error,
    refusal_message,
)
from tests.fakes.engine import FakeEngine

ID = "0123456789ab" * 5 + "cdef"
HOLDER = "fedcba987654" * 5 + "3210"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "Minimum memory limit allowed is 6MB", InvalidArgument),
        (404, f"No such container: {ID}", NotFound),
        (409, f"Container {ID} is not running", FailedPrecondition),
        (409, f"conflict: unable to delete 0 (cannot be forced) - used by running container {ID}", FailedPrecondition),
        (409, f"removal of container {ID} is already in progress", RemovalInProgress),
        (429, "toomanyrequests", ResourceExhausted),
        (403, "authorization denied by plugin opa", ShimError),
        (500, "driver failed", ShimError),
        (500, f"Container {ID} is not running: Exited (7) Less than a second ago", FailedPrecondition),
        (500, f"RWLayer of container {ID} is unexpectedly nil", NotFound),
        (500, "consistency error: data changed during operation, retry", ChangedMeanwhile),
        (404, "network x not found", NotFound),
        (501, "not supported on this platform", Unsupported),
        (503, "shutting down", Unavailable),
        (400, "client version 1.51 is too new. Maximum supported API version is 1.41", Unavailable),
        (400, "client version 1.41 is too old. Minimum supported API version is 1.44", Unavailable),
    ],
)
def test_each_refusal_has_its_error(status: int, message: str, kind: type[ShimError]) -> None:
    error = error_from_refusal(Refused(status, message), what=f"do it to {ID}")

    assert type(error) is kind
    assert str(error) == f"do it to {ID}: {message}"


def test_an_unsupported_call_is_no_missing_object() -> None:
    error = error_from_refusal(Refused(404, "page not found"), what=f"inspect container {ID}")

    assert type(error) is Unsupported


@pytest.mark.parametrize(
    "message",
    [
        f'Conflict. The container name "/a" is already in use by container "{HOLDER}". You have to remove it.',
        f'Conflict. The container name "/a" is already in use by container {HOLDER}. You have to remove it.',
        f'Error when allocating new name: Conflict. The container name "/a" is already in use by container "{HOLDER}".',
    ],
    ids=["quoted", "bare", "rename"],
)
def test_a_taken_name_names_its_holder(message: str) -> None:
    error = error_from_refusal(Refused(409, message), what="create container a")

    assert isinstance(error, NameConflict)
    assert error.holder == HOLDER


@pytest.mark.parametrize(
    ("status", "message", "kind", "says"),
    [
        (404, "No such image: a/b:1", NotFound, "image a/b:1"),
        (404, "no such image: a/b:1: not found", NotFound, "image a/b:1"),
        (404, "network x not found", FailedPrecondition, "network x"),
        (404, f"No such container: {HOLDER}", FailedPrecondition, HOLDER),
        (400, "Unknown runtime specified nope", InvalidArgument, "nope"),
        (500, "no space left on device", ShimError, "no space"),
        (400, "no command specified", NoCommand, "image a/b:1 names no command"),
        (400, "No command specified", NoCommand, "image a/b:1 names no command"),
        (500, f"stat /d/rootfs/overlayfs/{'61' * 130}: file name too long", MountNameTooLong, "its path"),
        (500, "stat /d/rootfs/overlayfs/61: no such file or directory", ShimError, "no such file"),
        (400, "logger: max-buffer-size option is only supported with 'mode=x'", LogOptionsClash, "log-opts of dockerd"),
        (500, "Cannot mkdir: /x is not a directory", FailedPrecondition, "its working directory"),
    ],
)
def test_not_found_at_create_concerns_the_image(status: int, message: str, kind: type[ShimError], says: str) -> None:
    error = error_from_create_refusal(Refused(status, message), name="c", image="a/b:1")

    assert type(error) is kind
    assert str(error).startswith("create container c: ")
    assert says in str(error)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, f"No such container: {ID}", NotFound),
        (404, f"No such container: {HOLDER}", FailedPrecondition),
        (404, "network nope not found", FailedPrecondition),
        (409, f"cannot join network of a non running container: {HOLDER}", FailedPrecondition),
        (400, 'exec: "/nope": stat /nope: no such file or directory: unknown', ShimError),
        (500, "permission denied", ShimError),
    ],
)
def test_a_failed_start_is_a_failure_of_the_container(status: int, message: str, kind: type[ShimError]) -> None:
    error = error_from_start_refusal(Refused(status, message), container_id=ID)

    assert type(error) is kind
    assert str(error) == f"start container {ID}: {message}"


@pytest.mark.parametrize("status", [400, 404, 500])
def test_the_error_of_a_failed_start_has_no_prefixes(status: int) -> None:
    message = "failed to create shim task: OCI runtime create failed: runc create failed: permission denied: unknown"

    error = error_from_start_refusal(Refused(status, message), container_id=ID)

    assert str(error) == f"start container {ID}: permission denied"


REGISTRY = "127.0.0.1:5000/no/such:1"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (500, 'Get "http://localhost:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused', RegistryUnavailable),
        (500, 'Get "https://x/v2/": dial tcp: lookup x on 10.0.0.1:53: no such host', RegistryUnavailable),
        (500, 'Get "https://x/v2/": dial tcp 1.2.3.4:443: connect: permission denied', RegistryUnavailable),
        (500, 'Get "https://x/v2/": net/http: TLS handshake timeout', RegistryUnavailable),
        (500, 'Get "https://x/v2/": net/http: request canceled (Client.Timeout exceeded)', RegistryUnavailable),
        (500, "received unexpected HTTP status: 503 Service Unavailable", RegistryUnavailable),
        (500, "unexpected status from HEAD request to http://x/v2/a: 502 Bad Gateway", RegistryUnavailable),
        (
            500,
            "unexpected status from HEAD request to http://x/v2/a: 503 Service Temporarily Unavailable",
            RegistryUnavailable,
        ),
        (0, "unexpected status from GET request to http://x/v2/a/blobs/b: 521 ", RegistryUnavailable),
        (0, "read tcp 10.0.0.1:3344->10.0.0.2:443: read: connection timed out", RegistryUnavailable),
        (0, "unexpected EOF", RegistryUnavailable),
        (500, "toomanyrequests: You have reached your pull rate limit", TooManyRequests),
        (500, "error parsing HTTP 429 response body: unexpected end of JSON input", TooManyRequests),
        (500, "unexpected status from HEAD request to http://x/v2/a: 429 Too Many Requests", TooManyRequests),
        (
            0,
            "httpReadSeeker: failed open: unexpected status code http://x/a: 429 Too Many Requests",
            TooManyRequests,
        ),
        (429, "come again", TooManyRequests),
        (0, "error from registry: You have reached your pull rate limit.", TooManyRequests),
        (0, "error from registry: unavailable\nunavailable", RegistryUnavailable),
        (500, 'Head "http://x/v2/a/manifests/1": no basic auth credentials', RegistryDenied),
        (401, "unauthorized: authentication required", RegistryDenied),
        (
            404,
            "pull access denied for a, repository does not exist or may require 'docker login': denied",
            RegistryDenied,
        ),
        (500, "unexpected status from HEAD request to http://x/v2/a: 401 Unauthorized", RegistryDenied),
        (500, 'error parsing HTTP 403 response body: unexpected end of JSON input: ""', RegistryDenied),
        (500, "unexpected status from HEAD request to http://x/v2/a: 403 Blocked", RegistryDenied),
        (500, 'error parsing HTTP 404 response body: no error details found in HTTP response body: "{}"', NotFound),
        (500, "unknown: ", RegistryErrorUnknown),
        (404, f"manifest for {REGISTRY} not found: manifest unknown: manifest unknown", NotFound),
        (404, f'failed to resolve reference "{REGISTRY}": {REGISTRY}: not found', NotFound),
        (404, "no such thing", NotFound),
        (0, "no matching manifest for linux/arm64 in the manifest list entries", NotFound),
        (404, "no matching manifest for linux/arm64 in the manifest list entries: no match: not found", NotFound),
        (400, "invalid reference format: repository name must be lowercase", InvalidArgument),
        (500, "write /var/lib/docker/tmp/x: no space left on device", ShimError),
        (500, 'Get "https://x/v2/": tls: failed to verify certificate: x509: unknown authority', ShimError),
    ],
)
def test_failed_pulls_are_classified(status: int, message: str, kind: type[ShimError]) -> None:
    error = error_from_pull_failure(message, reference=REGISTRY, status=status)

    assert type(error) is kind
    assert str(error) == f"pull image {REGISTRY}: {message}"


def test_a_failed_http_fallback_mentions_the_failed_https() -> None:
    message = "error parsing HTTP 400 response body: Client sent an HTTP request to an HTTPS server."
    error = error_from_pull_failure(message, reference=REGISTRY, status=500)

    assert type(error) is RegistryErrorUnknown
    assert str(error).startswith(f"pull image {REGISTRY}: {message} (HTTPS was tried first, ")
    assert "credentials may be missing" in str(error)


@pytest.mark.parametrize(
    "name",
    [
        *("unauthorized/app:1", "team/eof:1", "team/app-denied:1", "denied:1", "team/eof:EOF", "r.example/forbidden:1"),
        *(f"{name}@sha256:{'00' * 32}" for name in ("unauthorized/app", "team/eof", "team/app-denied", "denied")),
    ],
)
@pytest.mark.parametrize(
    "reported",
    [
        "{familiar}: manifest unknown",
        "manifest for {familiar} not found: manifest unknown",
        "{canonical}: not found",
        'failed to resolve reference "{canonical}": {canonical}: not found',
        "GET https://r.example/v2/{path}/manifests/{last}: not found",
    ],
    ids=["familiar", "familiar in a sentence", "canonical", "twice", "address"],
)
def test_the_name_of_an_image_does_not_classify_a_failure(name: str, reported: str) -> None:
    image = references.parse(name)
    last = image.digest or image.tag
    message = reported.format(familiar=image.familiar(), canonical=image, path=image.path, last=last)

    assert type(error_from_pull_failure(message, reference=str(image))) is NotFound


@pytest.mark.parametrize("name", ["unauthorized/app", "team/eof", "team/app-denied"])
def test_the_repository_name_does_not_classify_a_failure(name: str) -> None:
    message = f"repository {name} not found: does not exist or no pull access"

    assert type(error_from_pull_failure(message, reference=f"docker.io/{name}:1")) is NotFound


@pytest.mark.parametrize("name", ["denied:latest", "r.example/denied:1", "unauthorized/denied:1"])
def test_the_text_of_the_registry_counts_for_any_name(name: str) -> None:
    message = f"{name}: denied: requested access to the resource is denied"

    assert type(error_from_pull_failure(message, reference=references.canonical(name))) is RegistryDenied


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"message":"no such thing","code":1}', "no such thing"),
        (b"page not found\n", "page not found"),
        (b'{"error":"x"}', '{"error":"x"}'),
        (b'{"message":null}', '{"message":null}'),
        (b"", "no reason given"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 10_000, "x" * MAX_MESSAGE),
    ],
    ids=["json", "text", "other json", "null", "nothing", "bytes", "long"],
)
def test_the_text_of_a_refusal_is_found(content: bytes, message: str) -> None:
    assert refusal_message(content) == message


def test_a_lost_connection_is_unavailable() -> None:
    with (
        pytest.raises(Unavailable, match="do it: Docker cannot be reached: broken pipe") as failed,
        docker_call("do it"),
    ):
        raise ConnectionLost("broken pipe")

    assert isinstance(failed.value.__cause__, ConnectionLost)


@pytest.mark.parametrize(("within", "says"), [(2.5, "within 2.5 s"), (None, "in time")])
def test_a_timeout_names_its_seconds(within: float | None, says: str) -> None:
    with (
        pytest.raises(DeadlineExceeded, match=f"do it: Docker did not answer {says}"),
        docker_call("do it", within=within),
    ):
        raise TimedOut


@pytest.mark.parametrize("failure", [ConnectionLost("x"), TimedOut()], ids=["lost", "timed out"])
def test_a_connection_lost_to_a_cancellation_is_cancelled(failure: Exception) -> None:
    scope = Scope()

    def go_and_lose() -> None:
        with docker_call("do it"):
            scope.cancel()
            raise failure

    with deadline.entered(scope), pytest.raises(Cancelled):
        go_and_lose()


def test_no_call_is_made_in_an_ended_scope() -> None:
    with deadline.bound(0), pytest.raises(DeadlineExceeded), docker_call("do it"):
        pytest.fail("it was asked")


def test_a_call_without_an_answer_is_named(engine: FakeEngine) -> None:
    with (
        engine.held("ping"),
        pytest.raises(DeadlineExceeded, match=r"ping Docker: Docker did not answer within 0\.01 s"),
        answered_within(0.01, what="ping Docker"),
    ):
        engine.ping()


def test_a_deadline_of_the_client_does_not_blame_docker(engine: FakeEngine) -> None:
    with (
        engine.held("ping"),
        deadline.bound(0.01),
        pytest.raises(DeadlineExceeded, match="ping Docker: the deadline of the request has passed"),
        answered_within(30, what="ping Docker"),
    ):
        engine.ping()


def test_a_client_that_leaves_ends_the_call(engine: FakeEngine) -> None:
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled), answered_within(30, what="ping Docker"):
        engine.ping()


RUNC = "OCI runtime create failed: runc create failed: "
OLD, NEW = (
    f"failed to create shim task: {RUNC}",
    f"failed to create task for container: failed to create shim task: {RUNC}",
)
PROCESS = "unable to start container process: "


@pytest.mark.parametrize(
    ("reported", "plain"),
    [
        (
            f'{NEW}{PROCESS}exec: "nope": executable file not found in $PATH',
            'exec: "nope": executable file not found in $PATH',
        ),
        (
            f'{OLD}{PROCESS}exec: "nope": executable file not found in $PATH: unknown',
            'exec: "nope": executable file not found in $PATH',
        ),
        (
            f"{OLD}{PROCESS}unable to apply caps: operation not permitted: unknown",
            "unable to apply caps: operation not permitted",
        ),
        (
            f"{OLD}{PROCESS}error during container init: mount: not a directory: unknown: Are you trying to mount",
            "mount: not a directory: Are you trying to mount",
        ),
        (f"{NEW}string SCMP_ARCH_FOO is not a valid arch", "string SCMP_ARCH_FOO is not a valid arch"),
        ("unable to find user x: no matching entries", "unable to find user x: no matching entries"),
        ("cannot start a stopped process: unknown", "cannot start a stopped process: unknown"),
        ("runc create failed: ", "runc create failed: "),
        ("", ""),
    ],
    ids=[
        "new",
        "old",
        "capabilities",
        "advice",
        "profile",
        "docker's own",
        "containerd's own",
        "nothing left",
        "empty",
    ],
)
def test_plain_start_error_is_the_cause(reported: str, plain: str) -> None:
    assert plain_start_error(reported) == plain
