"""Credential helpers: programs `docker-credential-<name>`, which `credsStore` and `credHelpers` name.

The protocol is docker-credential-helpers': the argument `get`, the registry on standard input, and an object with
Username and Secret on standard output.
"""

import os
import shutil
from pathlib import Path

import msgspec
import structlog

from shim.base import deadline
from shim.base.single_flight import SingleFlight
from shim.credentials.model import Credentials
from shim.credentials.program import TIMEOUT, failure_of, run_helper
from shim.domain.errors import ShimError
from shim.domain.references import DEFAULT_DOMAIN, HUB_ADDRESS

log = structlog.get_logger(__name__)

PREFIX = "docker-credential-"

_NOT_FOUND = "credentials not found in native keychain"
"""Printed, with exit status 1, by a helper without credentials for the registry: part of the protocol."""
_TOKEN_USER = "<token>"  # noqa: S105 - a name of the protocol
"""The user name that marks a secret as an identity token."""


class _Answer(msgspec.Struct):
    username: str = msgspec.field(default="", name="Username")
    secret: str = msgspec.field(default="", name="Secret")

    def __repr__(self) -> str:
        return "_Answer(...)"


class CredentialStores:
    """Runs credential helpers. Thread-safe; concurrent requests for the same credentials share a run.

    Answers are not cached: tokens in them may live for only minutes, and Docker runs the helper each time, too.
    """

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        """Run nothing yet. `timeout` bounds a run, in seconds."""
        self._timeout = timeout
        self._single_flight: SingleFlight[Credentials | None] = SingleFlight()

    def find(self, name: str, *, domain: str) -> Credentials | None:
        """Return the credentials of the helper `name` for the registry `domain`; None if it has none.

        A helper that fails, hangs or prints something else is logged and counts as having none.
        """
        what = f"ask {PREFIX}{name} for credentials of {domain}"
        try:
            return self._single_flight.do((name, domain), lambda: self._ask(name, domain, what=what), what=what)
        except ShimError as failure:
            deadline.current().check(what)
            log.warning("skipped credential helper", helper=name, registry=domain, error=failure)
            return None

    def _ask(self, name: str, domain: str, *, what: str) -> Credentials | None:
        outcome = run_helper(
            _program(name, what=what),
            arguments=["get"],
            environment=os.environ,
            # `docker login` stores credentials of Docker Hub by URL, all others by host.
            stdin=(HUB_ADDRESS if domain == DEFAULT_DOMAIN else domain).encode(),
            timeout=self._timeout,
            what=what,
        )
        if outcome.returncode != 0:
            if outcome.stdout.decode(errors="replace").strip().startswith(_NOT_FOUND):
                return None
            raise ShimError(f"{what}: {failure_of(outcome)}")
        return answer_of(outcome.stdout, what=what)


def _program(name: str, *, what: str) -> Path:
    # With a slash `which` would treat it as a path, and run a program outside PATH.
    found = None if "/" in name else shutil.which(PREFIX + name)
    if found is None:
        raise ShimError(f"{what}: {PREFIX}{name} is not on PATH")
    return Path(found)


def answer_of(printed: bytes, *, what: str) -> Credentials | None:
    """Decode the output of a helper. Raise ShimError for any other output, without showing it."""
    try:
        answer = msgspec.json.decode(printed, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ShimError(f"{what}: its answer is not an object with Username and Secret") from None
    if answer.username == _TOKEN_USER:
        credentials = Credentials(identity_token=answer.secret)
    else:
        credentials = Credentials(username=answer.username, password=answer.secret)
    return credentials if credentials.is_given else None
