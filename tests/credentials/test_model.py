"""Credentials do not show their content."""

import base64

import pytest

from shim.credentials.model import Credentials, Found, pair_from_base64


def encoded(pair: bytes) -> str:
    return base64.b64encode(pair).decode()


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        pytest.param(encoded(b"u:p"), ("u", "p"), id="plain"),
        pytest.param(encoded(b"u:p:q"), ("u", "p:q"), id="colon in the password"),
        pytest.param(encoded(b"u:"), ("u", ""), id="no password"),
        pytest.param(encoded(b"user:word").rstrip("="), ("user", "word"), id="without padding"),
        pytest.param(f" {encoded(b'u:p')}\n", ("u", "p"), id="white space around it"),
        pytest.param(base64.encodebytes(b"u:" + b"p" * 99).decode(), ("u", "p" * 99), id="lines"),
        pytest.param(encoded(b"u:words").replace("d", "d\r\n").rstrip("="), ("u", "words"), id="lines, no padding"),
        pytest.param(encoded(b"u:p\0\0"), ("u", "p"), id="filled up"),
        pytest.param(encoded("ü:ä".encode()), ("ü", "ä"), id="UTF-8"),
    ],
)
def test_pair_is_decoded_from_base64(text: str, pair: tuple[str, str]) -> None:
    assert pair_from_base64(text) == pair


@pytest.mark.parametrize(
    "text", ["s3cret!", encoded(b"s3cret"), encoded(b"u:\xff"), "dTp w"], ids=["text", "no colon", "bytes", "blank"]
)
def test_invalid_pair_is_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not base64 of user:password$") as caught:
        pair_from_base64(text)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_repr_shows_nothing() -> None:
    credentials = Credentials(username="u", password="s3cret", identity_token="t0ken", registry_token="t1ken")
    for shown in (repr(credentials), str(credentials), repr(Found("here", credentials))):
        assert not [word for word in ("s3cret", "t0ken", "t1ken") if word in shown]


@pytest.mark.parametrize(
    ("credentials", "given"),
    [
        (Credentials(), False),
        (Credentials(password="p"), False),
        (Credentials(username="u"), True),
        (Credentials(identity_token="t"), True),
        (Credentials(registry_token="t"), True),
    ],
)
def test_is_given_with_any_credential(credentials: Credentials, *, given: bool) -> None:
    assert credentials.is_given is given
