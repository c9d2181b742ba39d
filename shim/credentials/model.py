"""Credentials of a registry, and the encoding that several sources share."""

import base64
import binascii
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A login for a registry. Its repr is redacted."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    """Sent to the registry's token server instead of a password."""
    registry_token: str = ""
    """Sent to the registry unchanged."""

    def __repr__(self) -> str:
        return "Credentials(...)"

    @property
    def is_given(self) -> bool:
        """Whether there are credentials to log in with."""
        return bool(self.username or self.identity_token or self.registry_token)


@dataclass(frozen=True, slots=True)
class Found:
    """Credentials that may match an image."""

    source: str
    """Their source, for people: file and entry, or program."""
    credentials: Credentials


def pair_from_base64(text: str) -> tuple[str, str]:
    """Decode user and password from base64 of `user:password`, the form of every `auth` field.

    Accepts missing padding, line breaks as by base64(1), and NUL bytes that some writers append to the password. Raise
    ValueError, which shows nothing of the text.
    """
    stripped = text.strip().replace("\r", "").replace("\n", "")
    try:
        pair = base64.b64decode(stripped + "=" * (-len(stripped) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        # The cause would show part of the secret.
        raise ValueError("not base64 of user:password") from None
    username, colon, password = pair.partition(":")
    if not colon:
        raise ValueError("not base64 of user:password")
    return username, password.strip("\0")
