"""How a file of state is wrapped, so that one that was cut short, altered or written by a newer shim is noticed."""

import hashlib
from typing import TypeVar

import msgspec

from shim.checkpoint.model import VERSION, Envelope, Versioned
from shim.domain.errors import ShimError

_envelope = msgspec.json.Decoder(Envelope)
_versioned = msgspec.json.Decoder(Versioned)

T = TypeVar("T")


class Untrusted(ShimError):
    """The content of a file is nothing to rely on."""


class Newer(Untrusted):
    """A newer server has written it, in a form that this one does not know."""


def seal(data: bytes) -> bytes:
    """Wrap JSON for its file."""
    envelope = Envelope(version=VERSION, checksum=hashlib.sha256(data).hexdigest(), data=msgspec.Raw(data))
    return msgspec.json.encode(envelope)


def unseal(content: bytes) -> bytes:
    """Unwrap the JSON of a file. Raise Untrusted with the reason why not."""
    version = parsed(_versioned, content).version
    if version > VERSION:
        raise Newer(f"its version {version} is newer than this shim, which knows {VERSION}")
    envelope = parsed(_envelope, content)
    if envelope.version != VERSION:
        raise Untrusted(f"its version {envelope.version} is unknown")
    data = bytes(envelope.data)
    if hashlib.sha256(data).hexdigest() != envelope.checksum:
        raise Untrusted("its checksum does not match")
    return data


def parsed(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Decode JSON. Raise Untrusted for what is none, or is of another shape."""
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Untrusted(str(error)) from error
