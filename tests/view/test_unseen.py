from shim.view.records import Record, key_of
from shim.view.unseen import Unseen
from tests.view.samples import container, sandbox


def test_what_is_being_made_is_hidden_until_the_end() -> None:
    unseen = Unseen()
    made, other = container(), sandbox()
    with unseen.making(key_of(made), hidden=lambda: True):
        assert unseen.is_hidden(made)
        assert unseen.is_untold(made)
        assert unseen.seen(list[Record]([made, other])) == [other]
        unseen.tell(key_of(made))
        assert unseen.is_hidden(made)
        assert not unseen.is_untold(made)
    assert unseen.seen(list[Record]([made, other])) == [made, other]


def test_without_plugins_it_is_shown_and_told_later() -> None:
    unseen, made = Unseen(), sandbox()
    with unseen.making(key_of(made), hidden=lambda: False):
        assert unseen.seen([made]) == [made]
        assert unseen.is_untold(made)
    assert not unseen.is_untold(made)
