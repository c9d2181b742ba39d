"""PullImage.

A pull may take any time while it makes progress; only a stall is bounded. Concurrent pulls of one reference with the
same credentials share one pull of the Engine, which a caller that goes away ends only when no other waits for it. A
pull without credentials tries those the node has for the image, one after the other.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.credentials.model import Credentials
from shim.domain import references
from shim.domain.errors import DeadlineExceeded, InvalidArgument, NotFound, ShimError
from shim.domain.ids import ImageId
from shim.engine.errors import RegistryDenied, RegistryErrorUnknown, RegistryUnavailable, TooManyRequests
from shim.engine.image_store import is_containerd_store
from shim.engine.interface import RegistryAuth
from shim.image.registry_auth import engine_auth, is_given, other_registry, registry_auth, without_secrets
from shim.image.stall_timeout import Observer, StallTimeout
from shim.runtime import Runtime
from shim.view.records import ImageRecord

log = structlog.get_logger(__name__)

_UNAVAILABLE = "RegistryUnavailable"
"""Prefix of the message by which the kubelet recognises a registry that is down (cri-api errors.go)."""
_WITHOUT = (None,)
"""In a list of credentials: the place of a pull without any."""


def pull_image(rt: Runtime, *, image: pb.ImageSpec, auth: pb.AuthConfig | None) -> ImageId:
    """Pull an image and return its id; it is in the view when this returns.

    Raise RegistryUnavailable (its message begins with that word) when the registry is down or the pull stalls,
    RegistryDenied when it wants other credentials, NotFound when it has no such image, InvalidArgument for a malformed
    reference.
    """
    reference = _parse(image.image)
    canonical = references.canonical(image.image)
    given = registry_auth(auth, domain=reference.domain)
    meant_for = other_registry(auth, domain=reference.domain)
    # Credentials that are for another registry are the caller's word, too: the keyring does not overrule it.
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
    """One way to ask the registry."""

    auth: RegistryAuth | None
    source: str = ""
    """Source of the credentials; empty for the caller's and for none."""
    meant_for: str = ""
    """The other registry that the caller's credentials are for, which are not used then."""


def _keyring_logins(rt: Runtime, canonical: str) -> Iterator[_Login]:
    """Yield a login for each of the node's credentials for the image, or one without credentials if there are none.

    Those that have come since they were searched follow.
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
    """A pull that has succeeded."""

    digest: str
    """Of the manifest; empty if Docker did not report it."""
    source: str
    """Source of the credentials the registry accepted."""
    ended: int
    """When Docker reported its end, ns by the monotonic clock."""


def _pull(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> ImageId:
    began = time.monotonic()
    pulled = _pull_with_any(rt, reference, logins=logins)
    known = _find_in_view(rt, reference, pulled=pulled)
    record = known or _look_up(rt, reference, digest=pulled.digest)
    if record is None:
        raise NotFound(f"{_what(reference)}: it was removed as soon as it had arrived")
    # Pods with imagePullPolicy Always mostly have their image already; the line of the RPC is enough then.
    report = log.debug if known and not pulled.source else log.info
    seconds = round(time.monotonic() - began, 1)
    report("pulled image", image=reference, id=record.id, seconds=seconds, credentials=pulled.source or None)
    return record.id


def _find_in_view(rt: Runtime, reference: str, *, pulled: _Pulled) -> ImageRecord | None:
    """Return the view's image of the name if it is the one of the pulled manifest; then Docker need not be asked.

    The name stood for it when this pull ended, even if it has been moved since.
    """
    # In the containerd store an image has the digest of its manifest for an id; in the other, no id is one.
    image_id = rt.puller.manifests.get(pulled.digest) or ImageId(pulled.digest)
    return rt.view.images.confirm(reference, image_id, since=pulled.ended)


def _look_up(rt: Runtime, reference: str, *, digest: str) -> ImageRecord | None:
    """Ask Docker which image has arrived; return None when it has been removed.

    It is searched by its manifest: the name may stand for another image by now, after another pull or a `docker tag`.
    """
    by_digest = f"{references.parse(reference).name}@{digest}" if digest else reference
    names = [by_digest, reference]
    if digest and is_containerd_store(rt.facts.info()):  # there it is the id
        names.insert(0, digest)
    record = _first(rt.view.images.refresh_one, names)
    if record is not None and digest and by_digest in record.repo_digests:
        rt.puller.manifests.put(digest, record.id, weight=1)
    return record


def _first(find: Callable[[str], ImageRecord | None], names: Iterable[str]) -> ImageRecord | None:
    """Return the image of the first name that exists."""
    return next((record for name in dict.fromkeys(names) if (record := find(name)) is not None), None)


def _pull_with_any(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> _Pulled:
    """Pull with the first login the registry accepts, else raise the last refusal.

    A TooManyRequests among them is raised instead, since that pull may succeed later. A registry that is down ends the
    search: every further login would have to wait.
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
    """Try to pull with one login. Return the error if the registry refuses this login, raise any other."""
    try:
        digest = _pull_while_moving(rt, reference, auth=login.auth)
    except RegistryUnavailable as failure:
        explained = _explain(failure, reference, login=login)
        if isinstance(failure, TooManyRequests):  # of this account, perhaps
            return explained
        raise explained from explained.__cause__
    except (RegistryDenied, RegistryErrorUnknown, NotFound) as failure:
        # Some registries report a repository as missing to those without access to it.
        return _explain(failure, reference, login=login)
    except ShimError as failure:
        text, cause = _redact(failure, reference, login=login)
        if cause is None:
            raise type(failure)(f"{_what(reference)}: {text}") from None
        raise
    return _Pulled(digest, login.source, time.monotonic_ns())


def _pull_while_moving(rt: Runtime, reference: str, *, auth: RegistryAuth | None) -> str:
    """Pull and return the digest of the manifest.

    The pull is ended when it makes no progress for the configured time, from its first moment on.
    """
    # A scope of its own: a stall ends the pull, not what its callers do next.
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
    """Return a refusal with the error text for the caller."""
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
    """Return the text of a failure without secrets, and the failure itself unless its text has one."""
    text = without_secrets(str(failure), login.auth)
    return text.removeprefix(f"{_what(reference)}: "), failure if text == str(failure) else None


def _login_problem(login: _Login) -> str:
    if login.meant_for:
        return f"wants credentials, and the credentials given are for {login.meant_for}"
    if login.auth is None:
        return "wants credentials, and none were given or found"
    return f"does not accept {f'the credentials of {login.source}' if login.source else 'these credentials'}"


def _what(reference: str) -> str:
    return f"pull image {reference}"
