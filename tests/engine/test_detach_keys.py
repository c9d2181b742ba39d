import base64

import pytest

from shim.engine.detach_keys import detach_keys, new_server_mark, server_of
from tests.fakes.engine_state import shown_detach_keys


def test_the_keys_name_their_server() -> None:
    mark = new_server_mark()

    assert server_of(shown_detach_keys(detach_keys(mark))) == mark
    assert new_server_mark() != mark


def test_the_keys_are_random() -> None:
    mark = new_server_mark()

    assert detach_keys(mark) != detach_keys(mark)


@pytest.mark.parametrize(
    "keys",
    [b"", b"\x10\x11", b"\0shim", b"\0shimABCDEFGH", b"\0shim" + b"a" * 25, b"shim" + b"a" * 24, b"\0" + b"a" * 28],
)
def test_other_detach_keys_have_no_mark(keys: bytes) -> None:
    assert server_of(base64.b64encode(keys).decode()) == ""


@pytest.mark.parametrize("shown", ["", "a", "====", "\0shim", "no base64 at all", "é"])
def test_invalid_base64_has_no_mark(shown: str) -> None:
    assert server_of(shown) == ""
