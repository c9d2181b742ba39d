"""A look is worthless once something newer about the same thing is known."""

from shim.view.looks import Looks


def test_only_looks_under_way_at_the_same_thing_are_overtaken() -> None:
    looks = Looks()
    early, other = looks.begin("a"), looks.begin("b")
    looks.overtake("a")
    late = looks.begin("a")
    assert (early.overtaken, other.overtaken, late.overtaken) == (True, False, False)


def test_nothing_is_kept_of_looks_that_ended() -> None:
    looks = Looks()
    first, second = looks.begin("a"), looks.begin("a")
    looks.end("a", first)
    looks.overtake("a")
    assert second.overtaken
    looks.end("a", second)
    looks.overtake("b")
    assert len(looks) == 0
