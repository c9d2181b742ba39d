import pytest

from shim.checkpoint.envelope import Untrusted, seal, unseal


def test_sealed_data_survives_a_round_trip() -> None:
    assert unseal(seal(b'{"a":1}')) == b'{"a":1}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (seal(b'{"a":1}')[:-1], "truncated"),
        (seal(b'{"a":1}').replace(b'"a"', b'"b"'), "its checksum does not match"),
        (seal(b"{}").replace(b'"version":1', b'"version":2'), "its version 2 is not 1"),
        (seal(b"{}").replace(b'"version":1', b'"version":0'), "its version 0 is not 1"),
        (b"\xff", "."),
    ],
    ids=["empty", "another shape", "cut short", "altered", "newer", "older", "no text"],
)
def test_untrusted_content_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(Untrusted, match=reason):
        unseal(content)
