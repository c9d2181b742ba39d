"""Maps errors of the domain to gRPC status codes and messages."""

import itertools
import unicodedata

import grpc

from shim.domain import errors

CODES: dict[type[errors.ShimError], grpc.StatusCode] = {
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    # The kubelet strips the code UNKNOWN and matches the rest of the message, such as `RegistryUnavailable`.
    errors.ShimError: grpc.StatusCode.UNKNOWN,
}

MAX_DETAILS = 4096
"""Bytes of a status message as sent: percent-encoded in a header. Clients refuse headers that exceed 8 KiB in total
(gRPC's C core refuses them at random), and lose the code with them."""

_CUT = " [...] "
_TAIL = 1024
"""Bytes of MAX_DETAILS for the end of a long message, where the causes are."""


def code_of(failure: BaseException) -> grpc.StatusCode:
    """Return the code of the nearest class in CODES; INTERNAL for an unexpected error."""
    for kind in type(failure).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.INTERNAL


def details_of(failure: BaseException) -> str:
    """Return the message with the error's notes, such as a failed undo, as a printable line (see `bounded`).

    For an unexpected failure return only its type: the message may hold a secret, and is in the log.
    """
    if not isinstance(failure, errors.ShimError):
        return f"unexpected {type(failure).__name__}, see the log of the server"
    return bounded("; ".join([str(failure), *getattr(failure, "__notes__", ())]))


def bounded(text: str) -> str:
    """Return a printable line of at most MAX_DETAILS bytes when percent-encoded: beginning and end of a longer text."""
    line = " ".join("".join(" " if _is_control(char) else char for char in text).split())
    line = line.encode(errors="backslashreplace").decode()
    if _cost(line) <= MAX_DETAILS:
        return line
    tail = _fitting(line[::-1], _TAIL)[::-1]
    return _fitting(line, MAX_DETAILS - _cost(tail) - len(_CUT)) + _CUT + tail


def _fitting(text: str, room: int) -> str:
    """Return the longest prefix of `text` that costs at most `room`."""
    costs = itertools.accumulate(_cost(char) for char in text[:room])
    return text[: sum(1 for _ in itertools.takewhile(lambda cost: cost <= room, costs))]


def _cost(text: str) -> int:
    """Return the bytes of `text` in the header `grpc-message`: three for `%` and each byte outside printable ASCII."""
    return sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in text.encode())


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Zl", "Zp"}
