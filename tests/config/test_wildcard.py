import pytest

from shim.config.wildcard import expression_from_wildcard


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("exact", "exact"), ("a/*", "a/"), ("a/*", "a/b/c"), ("*/x", "for/x"), ("a*c*e", "abcde"), ("*", "")],
)
def test_star_matches_any_text(pattern: str, text: str) -> None:
    assert expression_from_wildcard(pattern).fullmatch(text)


@pytest.mark.parametrize(
    ("pattern", "text"), [("exact", "exactly"), ("a/*", "b/a/c"), ("a.b", "axb"), ("a?", "ab"), ("[ab]", "a")]
)
def test_no_other_character_is_special(pattern: str, text: str) -> None:
    assert not expression_from_wildcard(pattern).fullmatch(text)


def test_brackets_are_literal() -> None:
    assert expression_from_wildcard("[fd00::1]:5000/*").fullmatch("[fd00::1]:5000/app")
