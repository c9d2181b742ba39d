"""PullImage.

A pull may take as long as it moves on: only silence is bounded. Two pulls of one reference with the same credentials
are one pull for the Engine, and a caller who goes away ends it only when nobody else waits for it. A pull that brings
no credentials tries those the node has for the image, one after the other.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain import references
from shim.domain.errors import DeadlineExceeded, InvalidArgument, NotFound, ShimError, Unavailable
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
"""The kubelet tells a registry that is down by this word at the start of the message (cri-api errors.go)."""


def pull_image(rt: Runtime, *, image: pb.ImageSpec, auth: pb.AuthConfig | None) -> ImageId:
    """Pull an image and give its id; it is in the view when this returns.

    RegistryUnavailable (its message begins with that word) when the registry is down or silent, RegistryDenied when
    it wants other credentials, NotFound when it has no such image, InvalidArgument for a malformed reference.
    """
    reference = _named(image.image)
    canonical = references.canonical(image.image)
    given = registry_auth(auth, domain=reference.domain)
    meant_for = other_registry(auth, domain=reference.domain)
    # Credentials that are for another registry are the caller's word, too: the keyring does not overrule it.
    use_keyring = auth is None or not is_given(auth)
    return rt.puller.pulls.join(
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
    """Where the credentials were found; empty for the caller's and for none."""
    meant_for: str = ""
    """The other registry that credentials of the caller were for, which are not used here."""


def _keyring_logins(rt: Runtime, canonical: str) -> Iterator[_Login]:
    """Yield a login for each credentials the node has for the image; without any, the one that brings none."""
    image = references.parse(canonical)
    are_found = False
    for found in rt.puller.keyring.find(image):
        are_found = True
        yield _Login(engine_auth(found.credentials, domain=image.domain), found.source)
    if not are_found:
        yield _Login(None)


def _named(text: str) -> references.Reference:
    if references.image_id(text):
        raise InvalidArgument(f"image.image {text} is an image id, which no registry knows; name a repository")
    return references.parse(text)


@dataclass(frozen=True, slots=True)
class _Pulled:
    """A pull that has succeeded."""

    digest: str
    """Of the manifest; empty if Docker did not tell."""
    source: str
    """Of the credentials the registry took."""
    ended: int
    """When Docker said so, ns by the monotonic clock."""


def _pull(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> ImageId:
    began = time.monotonic()
    pulled = _pull_with_any(rt, reference, logins=logins)
    known = _recognised(rt, reference, pulled=pulled)
    record = known or _looked_up(rt, reference, digest=pulled.digest)
    if record is None:
        raise NotFound(f"{_what(reference)}: it was removed as soon as it had arrived")
    # Pods that always pull mostly find their image here already, and the line of the RPC tells as much.
    tell = log.debug if known and not pulled.source else log.info
    seconds = round(time.monotonic() - began, 1)
    tell("pulled an image", image=reference, id=record.id, seconds=seconds, credentials=pulled.source or None)
    return record.id


def _recognised(rt: Runtime, reference: str, *, pulled: _Pulled) -> ImageRecord | None:
    """Give what the view has under the name if that is what a pull of this manifest brings.

    The name stood for it when this pull ended, whatever others make of the name meanwhile: Docker need not be asked.
    """
    # In the containerd store an image has the digest of its manifest for an id; in the other, no id is one.
    image_id = rt.puller.manifests.get(pulled.digest) or ImageId(pulled.digest)
    return rt.view.images.confirm(reference, image_id, since=pulled.ended)


def _looked_up(rt: Runtime, reference: str, *, digest: str) -> ImageRecord | None:
    """Ask Docker which image has arrived; None when it has gone.

    It is looked for by its manifest: the name may stand for another image by now, after another pull or a `docker tag`.
    """
    name = references.parse(reference).name
    by_digest = f"{name}@{digest}" if digest else reference
    if is_containerd_store(rt.facts.info()):  # whose list alone tells what an image takes of the disk
        record = _listed(rt, [digest or reference, by_digest, reference])
    else:
        record = _first(rt.view.images.refresh_one, [by_digest, reference])
    if record is not None and digest and by_digest in record.repo_digests:
        rt.puller.manifests.put(digest, record.id, weight=1)
    return record


def _listed(rt: Runtime, names: Sequence[str]) -> ImageRecord | None:
    """Find what has arrived in a new list of all images; where they cannot be listed, by itself."""
    try:
        rt.view.images.refresh()
    except Unavailable:
        raise
    except ShimError:
        deadline.current().check("list images")
        return _first(rt.view.images.refresh_one, names)
    return _first(rt.view.images.find, names)


def _first(look: Callable[[str], ImageRecord | None], names: Iterable[str]) -> ImageRecord | None:
    """Give what is found by the first name that there is."""
    return next((record for name in dict.fromkeys(names) if (record := look(name)) is not None), None)


def _pull_with_any(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> _Pulled:
    """Pull with the first login the registry takes; else the last refusal is raised.

    One that had too many requests goes before: that pull may succeed later. A registry that is down ends the search: it
    would let every login wait.
    """
    refusals: list[ShimError] = []
    for login in logins:
        if refusals:
            log.info("trying other credentials", image=reference, source=login.source, error=refusals[-1])
        outcome = _tried(rt, reference, login=login)
        if isinstance(outcome, _Pulled):
            return outcome
        refusals.append(outcome)
    raise next((refusal for refusal in refusals if isinstance(refusal, TooManyRequests)), refusals[-1])


def _tried(rt: Runtime, reference: str, *, login: _Login) -> _Pulled | ShimError:
    """Try to pull; an error is why the registry does not give the image to this login."""
    try:
        digest = _pull_while_moving(rt, reference, auth=login.auth)
    except RegistryUnavailable as failure:
        explained = _explained(failure, reference, login=login)
        if isinstance(failure, TooManyRequests):  # of this account, perhaps
            return explained
        raise explained from explained.__cause__
    except (RegistryDenied, RegistryErrorUnknown, NotFound) as failure:
        # Some registries deny that a repository exists to those who may not see it.
        return _explained(failure, reference, login=login)
    except ShimError as failure:
        text, cause = _shown(failure, reference, login=login)
        if cause is None:
            raise type(failure)(f"{_what(reference)}: {text}") from None
        raise
    return _Pulled(digest, login.source, time.monotonic_ns())


def _pull_while_moving(rt: Runtime, reference: str, *, auth: RegistryAuth | None) -> str:
    """Pull, and give the digest of the manifest.

    The pull is ended when it shows no progress for the configured time, from its first moment on.
    """
    # A scope of its own: silence ends the pull, not what its callers do next.
    patience = StallTimeout(
        rt.config.image_pull_progress_deadline,
        motion=rt.puller.progress,
        has_queue=not is_containerd_store(rt.facts.info()),
    )
    with deadline.current().on_cancel(patience.cancel), deadline.entered(patience):
        try:
            rt.engine.pull_image(reference, auth=auth, progress=Observer(reference, patience))
        except DeadlineExceeded as failure:
            if patience.is_over:
                raise RegistryUnavailable(patience.reason) from failure
            raise
    return patience.progress.digest


def _explained(failure: ShimError, reference: str, *, login: _Login) -> ShimError:
    """Say a refusal in the caller's words."""
    text, cause = _shown(failure, reference, login=login)
    what, domain = _what(reference), references.parse(reference).domain
    explained: ShimError
    if isinstance(failure, RegistryDenied):
        explained = RegistryDenied(f"{what}: unauthorized: {domain} {_verdict(login)}: {text}")
    elif isinstance(failure, RegistryUnavailable):
        explained = type(failure)(f"{_UNAVAILABLE}: {what}: {text}")
    elif isinstance(failure, RegistryErrorUnknown):
        explained = RegistryErrorUnknown(f"{what}: {text}")
    else:
        explained = NotFound(f"{what}: {domain} has no such image: {text}")
    explained.__cause__ = cause
    return explained


def _shown(failure: ShimError, reference: str, *, login: _Login) -> tuple[str, ShimError | None]:
    """Give what may be shown of a failure, and the failure itself unless it shows a secret."""
    text = without_secrets(str(failure), login.auth)
    return text.removeprefix(f"{_what(reference)}: "), failure if text == str(failure) else None


def _verdict(login: _Login) -> str:
    if login.meant_for:
        return f"wants credentials, and the credentials given are for {login.meant_for}"
    if login.auth is None:
        return "wants credentials, and none were given or found"
    return f"does not accept {f'the credentials of {login.source}' if login.source else 'these credentials'}"


def _what(reference: str) -> str:
    return f"pull image {reference}"
