"""Images are found by all they are called, and inspected no more than needed."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.domain.errors import Cancelled, InvalidArgument, NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId
from shim.engine.answers import ImageInspect, ImageSettings
from shim.view import image_index
from shim.view.image_index import ImageDetails, ImageIndex, name_for_people
from shim.view.records import ImageRecord
from tests.fakes.engine import FakeEngine

DIGEST = "sha256:" + "d" * 64


def image(first: str, *, tags: tuple[str, ...] = (), digests: tuple[str, ...] = ()) -> ImageRecord:
    image_id = ImageId("sha256:" + first.ljust(64, "0"))
    return ImageRecord(id=image_id, repo_tags=tags, repo_digests=digests, size=1, user="")


BUSYBOX = image("abc1", tags=("docker.io/library/busybox:latest",), digests=(f"docker.io/library/busybox@{DIGEST}",))
TEAM = image("abc2", tags=("registry.example:5000/team/app:v1", "registry.example:5000/team/app:v2"))
CAFE = image("cafe", tags=("docker.io/library/bead:latest",))
BEAD = image("bead")
INDEX = ImageIndex([BUSYBOX, TEAM, CAFE, BEAD])


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
def test_find(reference: str, expected: ImageRecord | None) -> None:
    assert INDEX.find(reference) is expected


def test_an_image_that_came_has_taken_its_tags_from_others() -> None:
    v2 = "registry.example:5000/team/app:v2"
    came = image("d00d", tags=(v2,), digests=(f"registry.example:5000/team/app@{DIGEST}",))
    index = INDEX.with_record(came)
    before = index.find("registry.example:5000/team/app:v1")
    assert index.find(v2) is came
    assert before is not None
    assert (before.id, before.repo_tags) == (TEAM.id, ("registry.example:5000/team/app:v1",))
    assert index.find("busybox") is BUSYBOX
    assert len(index.records) == len(INDEX.records) + 1
    assert len(index.with_record(came).records) == len(index.records)


def test_an_image_that_is_listed_twice_is_one_with_all_its_names() -> None:
    other = replace(TEAM, repo_tags=("r.example/other:1", *TEAM.repo_tags), repo_digests=(f"r.example/other@{DIGEST}",))
    index = ImageIndex([TEAM, BUSYBOX, other])
    assert [record.id for record in index.records] == [TEAM.id, BUSYBOX.id]
    assert index.records[0].repo_tags == (*TEAM.repo_tags, "r.example/other:1")
    for name in (TEAM.id, *TEAM.repo_tags, *other.repo_tags, *other.repo_digests):
        assert index.find(name) is index.records[0]


def test_beginning_of_several_ids_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="image id 'sha256:abc' fits 2 ids"):
        INDEX.find("abc")


@pytest.mark.parametrize("reference", ["", "Busybox", "a:b:c"])
def test_no_reference(reference: str) -> None:
    with pytest.raises(InvalidArgument):
        INDEX.find(reference)


def test_each_image_is_inspected_once_and_again_when_its_names_change() -> None:
    engine, details = FakeEngine(), ImageDetails()
    first = engine.add_image("busybox", ImageSettings(user="1000"))
    second = engine.add_image("registry.example/app")
    for _ in range(3):
        found = details.of_listed(engine, engine.list_images())
    assert sorted(engine.calls_of("inspect_image")) == sorted([first, second])
    settings = found[first].config
    assert settings is not None
    assert settings.user == "1000"
    engine.images[0].tags.append("busybox:1.36")
    assert details.of_listed(engine, engine.list_images())[first].repo_tags == ["busybox:latest", "busybox:1.36"]
    assert engine.calls_of("inspect_image")[2:] == [first]


@pytest.mark.parametrize("error", [NotFound("gone"), ShimError("blob is missing")], ids=["gone", "broken"])
def test_image_that_cannot_be_inspected_is_left_out_and_asked_for_again(error: ShimError) -> None:
    engine, details = FakeEngine(), ImageDetails()
    image_id = engine.add_image("busybox")
    engine.fail_next("inspect_image", error)
    assert details.of_listed(engine, engine.list_images()) == {}
    assert details.of_listed(engine, engine.list_images()).keys() == {image_id}


def test_an_image_that_stays_broken_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, details = FakeEngine(), ImageDetails()
    broken, fine = engine.add_image("busybox"), engine.add_image("registry.example/app")
    real = engine.inspect_image

    def inspect(reference: str) -> ImageInspect:
        if reference == broken:
            raise ShimError("blob is missing")
        return real(reference)

    monkeypatch.setattr(engine, "inspect_image", inspect)
    with capture_logs() as logs:
        for _ in range(3):
            assert details.of_listed(engine, engine.list_images()).keys() == {fine}
    assert [(line["image"], line["error"]) for line in logs] == [(broken, "blob is missing")]
    assert engine.calls_of("inspect_image") == [fine]


def test_inspects_that_succeeded_are_kept_when_the_pass_fails() -> None:
    engine, details = FakeEngine(), ImageDetails()
    for number in range(5):
        engine.add_image(f"registry.example/i{number}")
    engine.fail_next("inspect_image", Unavailable("docker is gone"))
    with pytest.raises(Unavailable):
        details.of_listed(engine, engine.list_images())
    engine.calls.clear()
    assert len(details.of_listed(engine, engine.list_images())) == 5
    assert len(engine.calls_of("inspect_image")) == 1


def test_an_inspect_that_hangs_costs_its_bound_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_index, "INSPECT_SECONDS", 0.05)
    engine, details = FakeEngine(), ImageDetails()
    stuck, fine = engine.add_image("busybox"), engine.add_image("registry.example/app")
    with engine.held("inspect_image", stuck), capture_logs() as logs:
        assert details.of_listed(engine, engine.list_images()).keys() == {fine}
    (line,) = logs
    assert f"inspect image {stuck}: docker did not answer within 0.05 s" in line["error"]
    assert details.of_listed(engine, engine.list_images()).keys() == {stuck, fine}


def test_lost_engine_is_no_property_of_an_image() -> None:
    engine = FakeEngine()
    engine.add_image("busybox")
    engine.fail_next("inspect_image", Unavailable("docker is gone"))
    with pytest.raises(Unavailable):
        ImageDetails().of_listed(engine, engine.list_images())


def test_caller_that_left_ends_the_inspects() -> None:
    engine = FakeEngine()
    engine.add_image("busybox")
    listed = engine.list_images()
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled):
        ImageDetails().of_listed(engine, listed)


def test_a_name_is_taken_from_its_record_and_all_else_stays() -> None:
    tags = ("docker.io/library/busybox:latest", "docker.io/library/moved:latest")
    here = image("abc1", tags=("docker.io/library/other:latest",))
    there = image("abc2", tags=tags)
    index = ImageIndex([here, there]).with_name("busybox", image("abc1", tags=tags, digests=BUSYBOX.repo_digests))
    found = {name: index.find(name) for name in ("busybox", f"busybox@{DIGEST}", "other", "moved")}
    assert {name: record and record.id for name, record in found.items()} == {
        "busybox": here.id,
        f"busybox@{DIGEST}": here.id,
        "other": here.id,
        "moved": there.id,
    }


def test_an_image_that_is_not_listed_comes_with_that_name_alone() -> None:
    index = ImageIndex([BEAD]).with_name(TEAM.repo_tags[0], TEAM)
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
def test_a_name_for_people(tags: tuple[str, ...], digests: tuple[str, ...], wanted: str, name: str) -> None:
    named = image("bead", tags=tags, digests=digests)
    assert name_for_people(named, wanted=wanted) == name
