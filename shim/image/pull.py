"""PullImage.

A pull may take as long as it moves on: only silence is bounded. Two pulls of one reference with the same credentials
are one pull for the Engine, and a caller who goes away ends it only when nobody else waits for it.
"""

import time

import structlog

from shim import deadline, references
from shim.api.v1 import api_pb2 as pb
from shim.deadline import Scope
from shim.engine.errors import RegistryDenied, RegistryUnavailable
from shim.engine.interface import PullProgress, RegistryAuth
from shim.errors import InvalidArgument, NotFound, ShimError
from shim.ids import ImageId
from shim.image.credentials import registry_auth, without_secrets
from shim.image.progress import Progress
from shim.image.watchdog import Watchdog
from shim.runtime import Runtime

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
    credentials = registry_auth(auth, domain=reference.domain)
    return rt.pulls.join(
        (canonical, credentials),
        lambda: _pull(rt, canonical, auth=credentials),
        what=_what(canonical),
    )


def _named(text: str) -> references.Reference:
    if not text:
        raise InvalidArgument("image.image is empty")
    if references.image_id(text):
        raise InvalidArgument(f"image.image {text} is an image id, which no registry knows; name a repository")
    return references.parse(text)


def _pull(rt: Runtime, reference: str, *, auth: RegistryAuth | None) -> ImageId:
    began = time.monotonic()
    try:
        _pull_while_moving(rt, reference, auth=auth)
    except (RegistryUnavailable, RegistryDenied, NotFound) as failure:
        _raise_explained(failure, reference, auth=auth)
    rt.view.refresh_images()
    record = rt.view.image(reference)
    if record is None:
        raise NotFound(f"{_what(reference)}: it was removed as soon as it had arrived")
    log.info("pulled an image", image=reference, id=record.id, seconds=round(time.monotonic() - began, 1))
    return record.id


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


def _raise_explained(failure: ShimError, reference: str, *, auth: RegistryAuth | None) -> None:
    """Raise the failure in the caller's words, and without its cause where that shows a secret."""
    text = without_secrets(str(failure), auth)
    cause = failure if text == str(failure) else None
    what, text = _what(reference), text.removeprefix(f"{_what(reference)}: ")
    domain = references.parse(reference).domain
    if isinstance(failure, RegistryUnavailable):
        raise RegistryUnavailable(f"{_UNAVAILABLE}: {what}: {text}") from cause
    if isinstance(failure, RegistryDenied):
        given = "does not accept these credentials" if auth else "wants credentials, and none were given"
        raise RegistryDenied(f"{what}: unauthorized: {domain} {given}: {text}") from cause
    raise NotFound(f"{what}: {domain} has no such image: {text}") from cause


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
