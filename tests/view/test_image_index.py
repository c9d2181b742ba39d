"""Images are found by id, tag, digest and id prefix."""

from dataclasses import replace

import pytest

from shim.domain.errors import InvalidArgument
from shim.domain.ids import ImageId
from shim.view.image_index import ImageIndex, name_for_people
from shim.view.records import ImageRecord

DIGEST = "sha256:" + "d" * 64


def image(first: str, *, tags: tuple[str, ...] = (), digests: tuple[str, ...] = ()) -> ImageRecord:
    image_id = ImageId("sha256:" + first.ljust(64, "0"))
    return ImageRecord(id=image_id, repo_tags=tags, repo_digests=digests, size=1, user="")


BUSYBOX = image("abc1", tags=("docker.io/library/busybox:latest",), digests=(f"docker.io/library/busybox@{DIGEST}",))
TEAM = image("abc2", tags=("registry.example:5000/team/app:v1", "registry.example:5000/team/app:v2"))
CAFE = image("cafe", tags=("docker.io/library/bead:latest",))
BEAD = image("bead")
INDEX = ImageIndex([BUSYBOX, TEAM, CAFE, BEAD])
"""Tests do not change it."""


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("busybox", BUSYBOX),
        ("docker.io/busybox:latest", BUSYBOX),
        ("index.docker.io/library/busybox", BUSYBOX),
        (f"busybox@{DIGEST}", BUSYBOX),
        (f"busybox:moved@{DIGEST}", BUSYBOX),
        (BUSYBOX.id, BUSYBOX),
        (BUSYBOX.id.removeprefix("sha256:"), BUSYBOX),
        ("sha256:abc2", TEAM),
        ("abc2", TEAM),
        ("registry.example:5000/team/app:v2", TEAM),
        ("registry.example:5000/team/app", None),
        ("busybox:1.36", None),
        ("f" * 64, None),
        ("f", None),
        ("bead", CAFE),
        ("beadb", None),
        ("sha256:bead", BEAD),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_an_image_is_found_by_id_name_and_prefix(reference: str, expected: ImageRecord | None) -> None:
    assert INDEX.find(reference) is expected


def test_a_new_image_takes_its_tags_from_others() -> None:
    index = ImageIndex(INDEX.records)
    v2 = "registry.example:5000/team/app:v2"
    came = image("d00d", tags=(v2,), digests=(f"registry.example:5000/team/app@{DIGEST}",))
    assert index.put(came) == [TEAM.id]
    before = index.find("registry.example:5000/team/app:v1")
    assert index.find(v2) is came
    assert before is not None
    assert (before.id, before.repo_tags) == (TEAM.id, ("registry.example:5000/team/app:v1",))
    assert index.find("busybox") is BUSYBOX
    assert len(index.records) == len(INDEX.records) + 1
    assert index.put(came) == []
    assert len(index.records) == len(INDEX.records) + 1


def test_two_list_items_of_an_image_are_merged() -> None:
    other = replace(TEAM, repo_tags=("r.example/other:1", *TEAM.repo_tags), repo_digests=(f"r.example/other@{DIGEST}",))
    index = ImageIndex([TEAM, BUSYBOX, other])
    team = index.find(TEAM.id)
    assert team is not None
    assert len(index.records) == 2
    assert team.repo_tags == (*TEAM.repo_tags, "r.example/other:1")
    for name in (*TEAM.repo_tags, *other.repo_tags, *other.repo_digests):
        assert index.find(name) is team


def test_an_ambiguous_id_prefix_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="image id 'sha256:abc' fits 2 ids"):
        INDEX.find("abc")


@pytest.mark.parametrize("reference", ["", "Busybox", "a:b:c"])
def test_an_invalid_reference_is_refused(reference: str) -> None:
    with pytest.raises(InvalidArgument):
        INDEX.find(reference)


def test_an_untagged_parent_image_is_hidden() -> None:
    child = replace(TEAM, parent=BEAD.id)
    index = ImageIndex([BEAD, child])
    assert (index.find(BEAD.id), index.records) == (None, (child,))
    index.remove(child.id)
    assert (index.find(BEAD.id), index.records) == (BEAD, (BEAD,))


def test_add_name_changes_only_that_name() -> None:
    tags = ("docker.io/library/busybox:latest", "docker.io/library/moved:latest")
    here = image("abc1", tags=("docker.io/library/other:latest",))
    there = image("abc2", tags=tags)
    index = ImageIndex([here, there])
    index.add_name("busybox", image("abc1", tags=tags, digests=BUSYBOX.repo_digests))
    found = {name: index.find(name) for name in ("busybox", f"busybox@{DIGEST}", "other", "moved")}
    assert {name: record and record.id for name, record in found.items()} == {
        "busybox": here.id,
        f"busybox@{DIGEST}": here.id,
        "other": here.id,
        "moved": there.id,
    }


def test_add_name_adds_an_unlisted_image_with_that_name_alone() -> None:
    index = ImageIndex([BEAD])
    index.add_name(TEAM.repo_tags[0], TEAM)
    assert index.find(TEAM.repo_tags[0]) is not None
    assert index.find(TEAM.repo_tags[1]) is None


@pytest.mark.parametrize(
    ("tags", "digests", "wanted", "name"),
    [
        (("docker.io/library/a:1", "docker.io/library/b:1"), (), "b:1", "docker.io/library/b:1"),
        (("docker.io/library/a:1", "docker.io/library/b:1"), (), "c:1", "docker.io/library/a:1"),
        (("docker.io/library/a:1",), (), "", "docker.io/library/a:1"),
        (("docker.io/library/a:1",), (), "NO NAME", "docker.io/library/a:1"),
        ((), (f"docker.io/library/a@{DIGEST}",), "", f"docker.io/library/a@{DIGEST}"),
        ((), (), "", BEAD.id),
    ],
    ids=["wanted", "other wanted", "any", "no reference", "digest", "nameless"],
)
def test_name_for_people_prefers_the_wanted_name(
    tags: tuple[str, ...], digests: tuple[str, ...], wanted: str, name: str
) -> None:
    named = image("bead", tags=tags, digests=digests)
    assert name_for_people(named, wanted=wanted) == name
