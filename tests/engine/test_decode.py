"""An answer is converted to its shape; an unexpected null counts as missing."""

import msgspec
import pytest

from shim.engine.answers import ImageSummary
from shim.engine.decode import decoded, read


def test_an_unexpected_null_counts_as_missing() -> None:
    assert read({"Id": "sha256:aa", "Size": None}, ImageSummary) == ImageSummary(id="sha256:aa")
    assert decoded(b'{"Id": "sha256:aa", "Size": null}', ImageSummary) == ImageSummary(id="sha256:aa")


def test_an_answer_of_another_shape_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        read({"Id": "sha256:bb", "RepoTags": 7}, ImageSummary)
