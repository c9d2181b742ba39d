"""An unreadable entry does not hide the others."""

import msgspec
import pytest
from structlog.testing import capture_logs

from shim.engine.answers import ImageSummary
from shim.engine.decode import ListReader, read

GOOD = {"Id": "sha256:aa", "RepoTags": None, "Size": 5}
BAD = {"Id": "sha256:bb", "RepoTags": 7}


def reader() -> ListReader[ImageSummary]:
    return ListReader(ImageSummary, what="image")


def test_an_unexpected_null_counts_as_missing() -> None:
    assert read({"Id": "sha256:aa", "Size": None}, ImageSummary) == ImageSummary(id="sha256:aa")


def test_readable_entries_are_returned() -> None:
    assert [image.id for image in reader().read([GOOD, BAD, GOOD, "nonsense"])] == ["sha256:aa", "sha256:aa"]


def test_an_unreadable_entry_is_logged_once() -> None:
    images = reader()
    with capture_logs() as logs:
        for answer in ([GOOD, BAD], [BAD], [GOOD], [GOOD, BAD]):
            images.read(answer)
    assert [line["kind"] for line in logs] == ["image", "image"]
    assert "sha256:bb" in logs[0]["error"]


def test_an_answer_that_is_no_list_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        reader().read({"message": "no"})
