"""Records are listed by kind, sandbox and pod."""

from shim.domain.ids import SandboxId
from shim.view.queries import lists_from_records
from tests.view.samples import container, sandbox


def test_lists_group_records_by_kind_and_sandbox() -> None:
    s1, s2 = sandbox("s1"), sandbox("s2")
    a, b, stray = container("a", sandbox="s1"), container("b", sandbox="s1"), container("c", sandbox="gone")
    lists = lists_from_records([a, s2, stray, s1, b])
    assert lists.sandboxes == (s2, s1)
    assert lists.containers == (a, stray, b)
    assert lists.by_sandbox == {SandboxId("s1"): (a, b), SandboxId("gone"): (stray,)}


def test_sandboxes_are_grouped_by_pod_uid() -> None:
    first, other, second = sandbox("first", uid="u1"), sandbox("other", uid="u2"), sandbox("second", uid="u1")
    lists = lists_from_records([first, other, second])
    assert lists.by_pod_uid == {"u1": (first, second), "u2": (other,)}
