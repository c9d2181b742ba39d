import string
from urllib.parse import quote

import grpc
import pytest

from shim.cri.grpc_codes import CODES, MAX_DETAILS, bounded, code_of, details_of
from shim.domain import errors
from shim.engine.errors import NameConflict, RegistryUnavailable, RemovalInProgress

PRINTABLE = string.printable.replace("%", "")


def test_every_class_of_the_domain_has_a_code() -> None:
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type)}

    assert set(CODES) == classes


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.NotFound("x"), grpc.StatusCode.NOT_FOUND),
        (NameConflict("x", holder=""), grpc.StatusCode.ALREADY_EXISTS),
        (errors.InvalidArgument("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (RemovalInProgress("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.DeadlineExceeded("x"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.Cancelled("x"), grpc.StatusCode.CANCELLED),
        (errors.Unavailable("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.ResourceExhausted("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.Unsupported("x"), grpc.StatusCode.UNIMPLEMENTED),
        (RegistryUnavailable("x"), grpc.StatusCode.UNKNOWN),
        (KeyError("x"), grpc.StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_each_error_has_its_code(failure: Exception, code: grpc.StatusCode) -> None:
    assert code_of(failure) is code


def test_notes_are_part_of_the_message() -> None:
    failure = errors.ShimError("create failed")
    failure.add_note("undo of the netns failed: busy")

    assert details_of(failure) == "create failed; undo of the netns failed: busy"


def test_an_unexpected_failure_shows_only_its_type() -> None:
    assert details_of(KeyError("hunter2")) == "unexpected KeyError, see the log of the server"


def test_control_characters_become_blanks() -> None:
    assert bounded("plugin said:\r\n\tno\0\x1b[31m \u2028 end") == "plugin said: no [31m end"


def test_text_that_is_not_utf8_is_escaped() -> None:
    assert bounded("caf\udce9") == "caf\\udce9"


@pytest.mark.parametrize("char", ["x", "%", "é", "€", "😀"])
def test_a_long_message_keeps_beginning_and_end(char: str) -> None:
    text = bounded("create of pod a" + char * 9000 + "no space left")

    assert MAX_DETAILS - 32 < len(quote(text, safe=PRINTABLE)) <= MAX_DETAILS
    assert text.startswith("create of pod a")
    assert text.endswith("no space left")
