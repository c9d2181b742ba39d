"""PullImage.

A pull may take as long as it moves on: only silence is bounded. Two pulls of one reference with the same credentials
are one pull for the Engine, and a caller who goes away ends it only when nobody else waits for it. A pull that brings
no credentials tries those the node has for the image, one after the other.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from shim import deadline, references
from shim.api.v1 import api_pb2 as pb
from shim.deadline import Scope
from shim.engine.errors import RegistryDenied, RegistryUnavailable
from shim.engine.interface import PullProgress, RegistryAuth
from shim.errors import InvalidArgument, NotFound, ShimError
from shim.ids import ImageId
from shim.image.credentials import engine_auth, is_given, registry_auth, without_secrets
from shim.image.progress import Progress
from shim.image.watchdog import Watchdog
from shim.runtime import Runtime
from shim.view.records import ImageRecord

log = structlog.get_logger(__name__)

_UNAVAILABLE = "RegistryUnavailable"
"""The kubelet tells a registry that is down by this word at the start of the message (cri-api errors.go)."""
_REPORT_SECONDS = 10.0
"""A pull is mentioned in the log when it takes longer, and again that often while it moves on."""


def pull_image(rt: Runtime, *, image: pb.ImageSpec, auth: pb.AuthConfig | None) -> ImageId:
    """Pull an image and give its id; it is in the view when this returns.

    RegistryUnavailable (its message begins with that word) when the registry is down or silent, RegistryDenied when
    it wants other credentials, NotFound when it has no such image, InvalidArgument for a malformed reference.
    """
    reference = _named(image.image)
    canonical = references.canonical(image.image)
    given = registry_auth(auth, domain=reference.domain)
    # Credentials that are for another registry are the caller's word, too: the keyring does not overrule it.
    use_keyring = auth is None or not is_given(auth)
    return rt.pulls.join(
        (canonical, given, use_keyring),
        lambda: _pull(rt, canonical, logins=_keyring_logins(rt, canonical) if use_keyring else [_Login(given)]),
        what=_what(canonical),
    )


@dataclass(frozen=True, slots=True)
class _Login:
    """One way to ask the registry."""

    auth: RegistryAuth | None
    source: str = ""
    """Where the credentials were found; empty for the caller's and for none."""


def _keyring_logins(rt: Runtime, canonical: str) -> Iterator[_Login]:
    """Yield a login for each credentials the node has for the image; without any, the one that brings none."""
    image = references.parse(canonical)
    are_found = False
    for found in rt.keyring.find(image):
        are_found = True
        yield _Login(engine_auth(found.credentials, domain=image.domain), found.source)
    if not are_found:
        yield _Login(None)


def _named(text: str) -> references.Reference:
    if not text:
        raise InvalidArgument("image.image is empty")
    if references.image_id(text):
        raise InvalidArgument(f"image.image {text} is an image id, which no registry knows; name a repository")
    return references.parse(text)


def _pull(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> ImageId:
    began = time.monotonic()
    source = _pull_with_any(rt, reference, logins=logins)
    record = _known(rt, reference)
    if record is None:
        rt.view.refresh_images()
        record = rt.view.image(reference)
    if record is None:
        raise NotFound(f"{_what(reference)}: it was removed as soon as it had arrived")
    seconds = round(time.monotonic() - began, 1)
    log.info("pulled an image", image=reference, id=record.id, seconds=seconds, credentials=source or None)
    return record.id


def _known(rt: Runtime, reference: str) -> ImageRecord | None:
    """Give what the view has of the image if Docker says the same of it.

    After the pull of what was here already that is so, and one inspect is much less than a list of all images.
    """
    record = rt.view.image(reference)
    if record is None:
        return None
    try:
        seen = rt.engine.inspect_image(reference)
    except NotFound:
        return None
    digests = {references.canonical(digest) for digest in seen.repo_digests or ()}
    return record if seen.id == record.id and digests == set(record.repo_digests) else None


def _pull_with_any(rt: Runtime, reference: str, *, logins: Iterable[_Login]) -> str:
    """Pull with the first login the registry takes, and give its source; the last refusal is raised.

    A registry that is down ends the search: it would let every login wait.
    """
    refusals: list[ShimError] = []
    for login in logins:
        if refusals:
            log.info("trying other credentials", image=reference, source=login.source, error=refusals[-1])
        refusal = _refusal(rt, reference, login=login)
        if refusal is None:
            return login.source
        refusals.append(refusal)
    raise refusals[-1]


def _refusal(rt: Runtime, reference: str, *, login: _Login) -> ShimError | None:
    """Try to pull; None when the image is here, else why the registry does not give it to this login."""
    try:
        _pull_while_moving(rt, reference, auth=login.auth)
    except RegistryUnavailable as failure:
        text, cause = _shown(failure, reference, login=login)
        raise RegistryUnavailable(f"{_UNAVAILABLE}: {_what(reference)}: {text}") from cause
    except (RegistryDenied, NotFound) as failure:
        # Some registries deny that a repository exists to those who may not see it.
        return _explained(failure, reference, login=login)
    except ShimError as failure:
        text, cause = _shown(failure, reference, login=login)
        if cause is None:
            raise type(failure)(f"{_what(reference)}: {text}") from None
        raise
    return None


def _pull_while_moving(rt: Runtime, reference: str, *, auth: RegistryAuth | None) -> None:
    """Pull, and end the pull when it shows no progress for the configured time, from its first moment on."""
    patience = rt.config.image_pull_progress_deadline
    # A scope of its own: silence ends the pull, not what its callers do next.
    pulling = Scope()
    with (
        deadline.current().on_cancel(pulling.cancel),
        deadline.entered(pulling),
        Watchdog(seconds=patience, bark=pulling.cancel) as watchdog,
    ):
        try:
            rt.engine.pull_image(reference, auth=auth, progress=_Observer(reference, watchdog))
        except ShimError as failure:
            if watchdog.barked:  # whatever it is called, it comes from the end we made
                raise RegistryUnavailable(f"no progress for {patience:g} s") from failure
            raise


def _explained(failure: ShimError, reference: str, *, login: _Login) -> ShimError:
    """Say a refusal in the caller's words."""
    text, cause = _shown(failure, reference, login=login)
    what, domain = _what(reference), references.parse(reference).domain
    explained: ShimError
    if isinstance(failure, RegistryDenied):
        explained = RegistryDenied(f"{what}: unauthorized: {domain} {_verdict(login)}: {text}")
    else:
        explained = NotFound(f"{what}: {domain} has no such image: {text}")
    explained.__cause__ = cause
    return explained


def _shown(failure: ShimError, reference: str, *, login: _Login) -> tuple[str, ShimError | None]:
    """Give what may be shown of a failure, and the failure itself unless it shows a secret."""
    text = without_secrets(str(failure), login.auth)
    return text.removeprefix(f"{_what(reference)}: "), failure if text == str(failure) else None


def _verdict(login: _Login) -> str:
    if login.auth is None:
        return "wants credentials, and none were given or found"
    return f"does not accept {f'the credentials of {login.source}' if login.source else 'these credentials'}"


def _what(reference: str) -> str:
    return f"pull image {reference}"


class _Observer:
    """Feeds the watchdog and the log from the progress messages of one pull."""

    def __init__(self, reference: str, watchdog: Watchdog) -> None:
        self._reference = reference
        self._watchdog = watchdog
        self._progress = Progress()
        self._report_at = time.monotonic() + _REPORT_SECONDS

    def __call__(self, message: PullProgress) -> None:
        if not self._progress.advance(message):
            return
        self._watchdog.feed(rest=self._progress.is_local)
        if time.monotonic() >= self._report_at:
            self._report(message)

    def _report(self, message: PullProgress) -> None:
        self._report_at = time.monotonic() + _REPORT_SECONDS
        log.info(
            "pulling an image",
            image=self._reference,
            layers=self._progress.layers,
            bytes=self._progress.downloaded,
            step=message.status,
        )
