"""Stores of credentials behind `docker-credential-<name>`, which `credsStore` and `credHelpers` name.

The protocol is that of docker-credential-helpers: the verb `get` as the argument, the registry on standard input, an
object with Username and Secret on standard output.
"""

import os
import shutil
from pathlib import Path

import msgspec
import structlog

from shim.base import deadline
from shim.base.single_flight import SingleFlight
from shim.credentials.model import Credentials
from shim.credentials.program import TIMEOUT, ask, failure_of
from shim.domain.errors import ShimError
from shim.domain.references import DEFAULT_DOMAIN, HUB_ADDRESS

log = structlog.get_logger(__name__)

PREFIX = "docker-credential-"

_NOT_FOUND = "credentials not found in native keychain"
"""What programs print, and end with 1, when they have nothing for the registry: words of the protocol."""
_TOKEN_USER = "<token>"  # noqa: S105 - a name of the protocol
"""The user name beside a secret that is an identity token."""


class _Answer(msgspec.Struct):
    username: str = msgspec.field(default="", name="Username")
    secret: str = msgspec.field(default="", name="Secret")

    def __repr__(self) -> str:
        return "_Answer(...)"


class CredentialStores:
    """Asks stores. Thread-safe; what several want to know of one store at the same time is asked once.

    Answers are not kept: tokens in them may live for minutes, and Docker asks every time, too.
    """

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        """`timeout`: seconds one question may take."""
        self._timeout = timeout
        self._flights: SingleFlight[Credentials | None] = SingleFlight()

    def find(self, name: str, *, domain: str) -> Credentials | None:
        """Ask the store `name` for the registry `domain`; None when it has nothing.

        A store that fails, hangs or answers something else is reported in the log, and has nothing.
        """
        what = f"ask {PREFIX}{name} for credentials of {domain}"
        try:
            return self._flights.join((name, domain), lambda: self._ask(name, domain, what=what), what=what)
        except ShimError as failure:
            deadline.current().check(what)
            log.warning("a store of credentials is passed over", store=name, registry=domain, error=failure)
            return None

    def _ask(self, name: str, domain: str, *, what: str) -> Credentials | None:
        outcome = ask(
            _program(name, what=what),
            arguments=["get"],
            environment=os.environ,
            # `docker login` stores what is for Docker Hub under an address, and all else by host.
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
    # With a slash `which` would take it for a path, and run what is not on PATH.
    found = None if "/" in name else shutil.which(PREFIX + name)
    if found is None:
        raise ShimError(f"{what}: {PREFIX}{name} is not on PATH")
    return Path(found)


def answer_of(printed: bytes, *, what: str) -> Credentials | None:
    """Read what a program has printed. ShimError for what is not its answer, which shows nothing of it."""
    try:
        answer = msgspec.json.decode(printed, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ShimError(f"{what}: its answer is not an object with Username and Secret") from None
    if answer.username == _TOKEN_USER:
        credentials = Credentials(identity_token=answer.secret)
    else:
        credentials = Credentials(username=answer.username, password=answer.secret)
    return credentials if credentials.is_given else None
