from shim.view.records import Record, key_of
from shim.view.unseen import Unseen
from tests.view.samples import container, sandbox


def test_a_new_object_is_hidden_until_the_end_of_the_block() -> None:
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


def test_without_plugins_a_new_object_is_visible_at_once() -> None:
    unseen, made = Unseen(), sandbox()
    with unseen.making(key_of(made), hidden=lambda: False):
        assert unseen.seen([made]) == [made]
        assert unseen.is_untold(made)
    assert not unseen.is_untold(made)
