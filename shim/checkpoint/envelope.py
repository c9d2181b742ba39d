"""The envelope of state files, which reveals files that were truncated, altered or written by a newer server."""

import hashlib
from typing import TypeVar

import msgspec

from shim.checkpoint.model import VERSION, Envelope, Versioned
from shim.domain.errors import ShimError

_envelope = msgspec.json.Decoder(Envelope)
_versioned = msgspec.json.Decoder(Versioned)

T = TypeVar("T")


class Untrusted(ShimError):
    """The content of a file cannot be trusted."""


def seal(data: bytes) -> bytes:
    """Wrap JSON for its file."""
    envelope = Envelope(version=VERSION, checksum=hashlib.sha256(data).hexdigest(), data=msgspec.Raw(data))
    return msgspec.json.encode(envelope)


def unseal(content: bytes) -> bytes:
    """Unwrap the JSON of a file. Raise Untrusted with the reason."""
    version = parsed(_versioned, content).version
    if version != VERSION:
        raise Untrusted(f"its version {version} is not {VERSION}, which this server reads")
    envelope = parsed(_envelope, content)
    data = bytes(envelope.data)
    if hashlib.sha256(data).hexdigest() != envelope.checksum:
        raise Untrusted("its checksum does not match")
    return data


def parsed(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Decode JSON. Raise Untrusted for invalid JSON or another structure."""
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Untrusted(str(error)) from error
