import pytest

from shim.checkpoint.envelope import Untrusted, sealed, unsealed


def test_what_was_sealed_is_there_again() -> None:
    assert unsealed(sealed(b'{"a":1}')) == b'{"a":1}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (sealed(b'{"a":1}')[:-1], "truncated"),
        (sealed(b'{"a":1}').replace(b'"a"', b'"b"'), "its checksum does not match"),
        (sealed(b"{}").replace(b'"version":1', b'"version":2'), "its version 2 is newer"),
        (sealed(b"{}").replace(b'"version":1', b'"version":0'), "its version 0 is unknown"),
        (b"\xff", "."),
    ],
    ids=["empty", "another shape", "cut short", "altered", "newer", "older", "no text"],
)
def test_what_cannot_be_trusted(content: bytes, reason: str) -> None:
    with pytest.raises(Untrusted, match=reason):
        unsealed(content)
