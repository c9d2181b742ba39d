"""PullImage.

A pull may take any time while it makes progress; only a stall has a timeout. Concurrent pulls of a reference with the
same credentials share one pull of the Engine, which is aborted only if all callers have left. A pull without
credentials tries each matching credential of the node in turn.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.credentials.model import Credentials
from shim.dockerd.image_store import is_containerd_store
from shim.domain import references
from shim.domain.errors import DeadlineExceeded, InvalidArgument, NotFound, ShimError
from shim.domain.ids import ImageId
from shim.engine.errors import RegistryDenied, RegistryErrorUnknown, RegistryUnavailable, TooManyRequests
from shim.engine.interface import RegistryAuth
from shim.image.registry_auth import engine_auth, is_given, other_registry, registry_auth, without_secrets
from shim.image.stall_timeout import Observer, StallTimeout
from shim.runtime import Runtime
from shim.view.records import ImageRecord

log = structlog.get_logger(__name__)

_UNAVAILABLE = "RegistryUnavailable"
"""Message prefix that tells the kubelet that the registry is down (cri-api errors.go)."""
_WITHOUT = (None,)
"""Stands for a pull without credentials in the order of attempts."""


def pull_image(rt: Runtime, *, image: pb.ImageSpec, auth: pb.AuthConfig | None) -> ImageId:
    """Pull an image and return its id; the image is then in the view.

    Raise RegistryUnavailable, with this prefix in its message, if the registry is down or the pull stalls. Raise
    RegistryDenied if the registry rejects the credentials, NotFound if it does not have the image, InvalidArgument for
    a malformed reference.
    """
    reference = _parse(image.image)
    canonical = references.canonical(image.image)
    given = registry_auth(auth, domain=reference.domain)
    meant_for = other_registry(auth, domain=reference.domain)
    # The keyring does not override explicit credentials, even if they are for another registry.
    use_keyring = auth is None or not is_given(auth)
    return rt.puller.pulls.do(
        (canonical, given, use_keyring, meant_for),
        lambda: _pull(
            rt,
            canonical,
            logins=_keyring_logins(rt, canonical) if use_keyring else [_Login(given, meant_for=meant_for)],
        ),
        what=_what(canonical),
    )


@dataclass(frozen=True, slots=True)
class _Login:
    """Credentials for an attempt to pull."""

    auth: RegistryAuth | None
    source: str = ""
    """Source of the node's credentials; empty for the caller's credentials or none."""
    meant_for: str = ""
    """The other registry of the caller's credentials, which are not used then."""


def _keyring_logins(rt: Runtime, canonical: str) -> Iterator[_Login]:
    """Yield a login for each matching credential of the node, or a login without credentials if none matches.

    Then yield credentials that were added meanwhile.
    """
    image, keyring = references.parse(canonical), rt.puller.keyring
    began = keyring.now()
    tried: set[Credentials] = set()
    for found in chain(keyring.find(image), _WITHOUT, keyring.find_late(image, since=began)):
        if found is None and not tried:
            yield _Login(None)
        if found is not None and found.credentials not in tried:
            tried.add(found.credentials)
            yield _Login(engine_auth(found.credentials, domain=image.domain), found.source)


def _parse(text: str) -> references.Reference:
    if references.image_id(text):
        raise InvalidArgument(f"image.image {text} is an image id, which no registry knows; name a repository")
    return references.parse(text)


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A successful pull."""

    digest: str
    """Digest of the manifest; empty if Docker did not report it."""
    source: str
    """Source of the accepted credentials."""
    ended: int
    """When Docker reported the end, ns by the monotonic clock."""


def _pull(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> ImageId:
    began = time.monotonic()
    pulled = _pull_with_any(rt, reference, logins=logins)
    known = _find_in_view(rt, reference, pulled=pulled)
    record = known or _look_up(rt, reference, digest=pulled.digest)
    if record is None:
        raise NotFound(f"{_what(reference)}: it was removed right after the pull")
    # With imagePullPolicy Always the image is mostly present. Then the log line of the RPC is enough.
    report = log.debug if known and not pulled.source else log.info
    seconds = round(time.monotonic() - began, 1)
    report("pulled image", image=reference, id=record.id, seconds=seconds, credentials=pulled.source or None)
    return record.id


def _find_in_view(rt: Runtime, reference: str, *, pulled: _Pulled) -> ImageRecord | None:
    """Return the view's image of this name if it has the pulled manifest; then Docker need not be queried.

    The name may have moved since this pull ended.
    """
    # In the containerd store the image id is the manifest digest. In the other store no image id equals a digest.
    image_id = rt.puller.manifests.get(pulled.digest) or ImageId(pulled.digest)
    return rt.view.images.confirm(reference, image_id, since=pulled.ended)


def _look_up(rt: Runtime, reference: str, *, digest: str) -> ImageRecord | None:
    """Return the pulled image from Docker; None if it has been removed.

    Look it up by manifest digest, because another pull or a `docker tag` may have moved the name.
    """
    by_digest = f"{references.parse(reference).name}@{digest}" if digest else reference
    names = [by_digest, reference]
    if digest and is_containerd_store(rt.facts.info()):  # there the digest is the id
        names.insert(0, digest)
    record = _first(rt.view.images.refresh_one, names)
    if record is not None and digest and by_digest in record.repo_digests:
        rt.puller.manifests.put(digest, record.id, weight=1)
    return record


def _first(find: Callable[[str], ImageRecord | None], names: Iterable[str]) -> ImageRecord | None:
    """Return the image of the first name that exists."""
    return next((record for name in dict.fromkeys(names) if (record := find(name)) is not None), None)


def _pull_with_any(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> _Pulled:
    """Pull with the first login that the registry accepts, else raise the last refusal.

    TooManyRequests takes precedence over other refusals, because the pull may succeed later. If the registry is
    unavailable, do not try further logins, which would wait too.
    """
    refusals: list[ShimError] = []
    for login in logins:
        if refusals:
            log.info("trying other credentials", image=reference, source=login.source, error=refusals[-1])
        outcome = _try_pull(rt, reference, login=login)
        if isinstance(outcome, _Pulled):
            return outcome
        refusals.append(outcome)
    raise next((refusal for refusal in refusals if isinstance(refusal, TooManyRequests)), refusals[-1])


def _try_pull(rt: Runtime, reference: str, *, login: _Login) -> _Pulled | ShimError:
    """Pull with one login. Return the error if the registry rejects the login; raise any other error."""
    try:
        digest = _pull_while_moving(rt, reference, auth=login.auth)
    except RegistryUnavailable as failure:
        explained = _explain(failure, reference, login=login)
        if isinstance(failure, TooManyRequests):  # the limit may be of this account only
            return explained
        raise explained from explained.__cause__
    except (RegistryDenied, RegistryErrorUnknown, NotFound) as failure:
        # Without access to a repository, some registries report it as missing.
        return _explain(failure, reference, login=login)
    except ShimError as failure:
        text, cause = _redact(failure, reference, login=login)
        if cause is None:
            raise type(failure)(f"{_what(reference)}: {text}") from None
        raise
    return _Pulled(digest, login.source, time.monotonic_ns())


def _pull_while_moving(rt: Runtime, reference: str, *, auth: RegistryAuth | None) -> str:
    """Pull; return the digest of the manifest.

    The pull is aborted if it makes no progress for the configured time.
    """
    # A separate scope, so that a stall aborts only the pull and not the caller's later work.
    timeout = StallTimeout(
        rt.config.image_pull_progress_deadline,
        all_pulls=rt.puller.progress,
        has_queue=not is_containerd_store(rt.facts.info()),
    )
    with deadline.current().on_cancel(timeout.cancel), deadline.entered(timeout):
        try:
            rt.engine.pull_image(reference, auth=auth, progress=Observer(reference, timeout))
        except DeadlineExceeded as failure:
            if timeout.is_over:
                raise RegistryUnavailable(timeout.reason) from failure
            raise
    return timeout.progress.digest


def _explain(failure: ShimError, reference: str, *, login: _Login) -> ShimError:
    """Return an error for the caller from a registry's refusal."""
    text, cause = _redact(failure, reference, login=login)
    what, domain = _what(reference), references.parse(reference).domain
    explained: ShimError
    if isinstance(failure, RegistryDenied):
        explained = RegistryDenied(f"{what}: unauthorized: {domain} {_login_problem(login)}: {text}")
    elif isinstance(failure, RegistryUnavailable):
        explained = type(failure)(f"{_UNAVAILABLE}: {what}: {text}")
    elif isinstance(failure, RegistryErrorUnknown):
        explained = RegistryErrorUnknown(f"{what}: {text}")
    else:
        explained = NotFound(f"{what}: {domain} has no such image: {text}")
    explained.__cause__ = cause
    return explained


def _redact(failure: ShimError, reference: str, *, login: _Login) -> tuple[str, ShimError | None]:
    """Return the text of a failure without secrets, and the failure itself if its text contained none."""
    text = without_secrets(str(failure), login.auth)
    return text.removeprefix(f"{_what(reference)}: "), failure if text == str(failure) else None


def _login_problem(login: _Login) -> str:
    if login.meant_for:
        return f"requires credentials, but the given credentials are for {login.meant_for}"
    if login.auth is None:
        return "requires credentials, but none were given or found"
    return f"does not accept {f'the credentials of {login.source}' if login.source else 'these credentials'}"


def _what(reference: str) -> str:
    return f"pull image {reference}"
