"""An exec credential provider: runs its plugin for matching images, and caches responses as they specify.

The protocol is the kubelet's `credentialprovider.kubelet.k8s.io`: a CredentialProviderRequest on standard input, a
CredentialProviderResponse on standard output, both JSON.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from shim.base import deadline
from shim.base.single_flight import SingleFlight
from shim.config.forms import seconds_from
from shim.credentials.matching import key_from_location, matches
from shim.credentials.model import Credentials
from shim.credentials.program import TIMEOUT, failure_of, run_helper
from shim.credentials.provider_config import ProviderSettings
from shim.domain.errors import ShimError

log = structlog.get_logger(__name__)

Entries = tuple[tuple[str, Credentials], ...]
"""Credentials by key (`shim.credentials.matching`)."""

_CACHE_KEYS: dict[str, Callable[[str], str]] = {
    "Image": lambda repository: f"image {repository}",
    "Registry": lambda repository: f"registry {repository.partition('/')[0]}",
    "Global": lambda _repository: "global",
}
"""The cache key of a response, by its cacheKeyType."""

MAX_KEPT = 1024
"""Maximum cached responses of a plugin; the oldest is evicted. Pods choose the repositories in the requests."""

_FIRST = "first"
"""Shared key of runs until the plugin's cacheKeyType is known."""


class _Auth(msgspec.Struct):
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return "_Auth(...)"


class _Response(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    cache_key_type: str
    cache_duration: str | None = None
    auth: dict[str, _Auth] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The result of a run of the plugin."""

    repository: str
    """The repository in its request."""
    key_type: str = ""
    entries: Entries = ()
    seconds: float = 0.0
    """How long to cache the response."""
    failure: ShimError | None = None

    def covers(self, repository: str) -> bool:
        if self.failure is not None:
            return repository == self.repository
        key = _CACHE_KEYS[self.key_type]
        return key(repository) == key(self.repository)


class Provider:
    """A plugin and its cached responses. Thread-safe."""

    def __init__(
        self, settings: ProviderSettings, *, timeout: float = TIMEOUT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Run nothing yet. `timeout` bounds a run, in seconds."""
        self.name = settings.name
        self._settings = settings
        self._timeout = timeout
        self._clock = clock
        self._single_flight: SingleFlight[_Run] = SingleFlight()
        self._lock = threading.Lock()
        self._key_type = ""
        self._kept: dict[str, tuple[Entries, float]] = {}

    def find(self, repository: str) -> Entries:
        """Return the plugin's entries for `repository` (`host[:port]/path`), none if its patterns do not match.

        A plugin that fails, hangs or prints something else is logged and has no entries.
        """
        settings = self._settings
        if settings.needs_service_account or not any(matches(key, repository) for key in settings.match_images):
            return ()
        kept = self._kept_for(repository)
        if kept is not None:
            return kept
        run = self._wait_run(repository)
        if run.failure is not None:
            log.warning("skipped credential provider", provider=self.name, error=run.failure)
        return run.entries

    def _wait_run(self, repository: str) -> _Run:
        """Run the plugin, or wait for a concurrent run whose response applies.

        The cache key of a response is predicted from the previous response. For the very first, all callers wait for a
        single run, and callers to whom its response does not apply run the plugin again.
        """
        what = self._what(repository)
        shared = _CACHE_KEYS[self._key_type](repository) if self._key_type else _FIRST
        run = self._single_flight.do(shared, lambda: self._run(repository), what=what)
        if run.covers(repository):
            return run
        return self._single_flight.do(repository, lambda: self._run(repository), what=what)

    def _run(self, repository: str) -> _Run:
        kept = self._kept_for(repository)  # by a run that ended just before this run began
        if kept is not None:
            return _Run(repository=repository, key_type="Image", entries=kept)
        try:
            run = self._response(repository)
        except ShimError as failure:
            deadline.current().check(self._what(repository))
            return _Run(repository=repository, failure=failure)
        self._keep(run)
        return run

    def _response(self, repository: str) -> _Run:
        settings, what = self._settings, self._what(repository)
        request = {"apiVersion": settings.api_version, "kind": "CredentialProviderRequest", "image": repository}
        outcome = run_helper(
            settings.binary,
            arguments=settings.arguments,
            environment={**os.environ, **settings.environment},
            stdin=msgspec.json.encode(request),
            timeout=self._timeout,
            what=what,
        )
        if outcome.returncode != 0:
            raise ShimError(f"{what}: {failure_of(outcome)}")
        return self._read(outcome.stdout, repository=repository)

    def _read(self, printed: bytes, *, repository: str) -> _Run:
        """Decode and check a response. Errors show only names of fields."""
        what = self._what(repository)
        try:
            response = msgspec.json.decode(printed, type=_Response)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
            where = str(failure) if isinstance(failure, msgspec.ValidationError) else "not JSON"
            raise ShimError(f"{what}: its response is malformed: {where}") from None
        if response.kind != "CredentialProviderResponse":
            raise ShimError(f"{what}: its response is malformed: kind is not CredentialProviderResponse")
        if response.api_version != self._settings.api_version:
            raise ShimError(f"{what}: its response is malformed: apiVersion is not {self._settings.api_version}")
        if response.cache_key_type not in _CACHE_KEYS:
            raise ShimError(f"{what}: its response is malformed: cacheKeyType is not {' or '.join(_CACHE_KEYS)}")
        found = [
            (key_from_location(location), Credentials(username=auth.username, password=auth.password))
            for location, auth in (response.auth or {}).items()
        ]
        return _Run(
            repository=repository,
            key_type=response.cache_key_type,
            entries=tuple(entry for entry in found if entry[1].is_given),
            seconds=self._seconds(response, what=what),
        )

    def _seconds(self, response: _Response, *, what: str) -> float:
        if response.cache_duration is None:
            return self._settings.default_cache_seconds
        try:
            seconds = seconds_from(response.cache_duration.removeprefix("-"))
        except ValueError:
            raise ShimError(f"{what}: its response is malformed: cacheDuration is not a duration") from None
        # A plugin may report the remaining time less a margin: an expired response is used but not cached.
        return -seconds if response.cache_duration.startswith("-") else seconds

    def _keep(self, run: _Run) -> None:
        now = self._clock()
        with self._lock:
            self._key_type = run.key_type
            self._kept = {key: kept for key, kept in self._kept.items() if kept[1] > now}
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            if run.seconds > 0:
                self._kept[_CACHE_KEYS[run.key_type](run.repository)] = run.entries, now + run.seconds

    def _kept_for(self, repository: str) -> Entries | None:
        now = self._clock()
        with self._lock:
            for key in _CACHE_KEYS.values():
                entries, expires = self._kept.get(key(repository), ((), 0.0))
                if expires > now:
                    return entries
        return None

    def _what(self, repository: str) -> str:
        return f"ask credential provider {self.name} about {repository}"
