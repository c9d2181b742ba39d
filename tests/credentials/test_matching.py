"""Which entry matches which repository: tables of the kubelet's rules."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.credentials.matching import fitting, key_from_location, matches


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("r.example", "r.example"),
        ("R.Example:5000", "r.example:5000"),
        ("https://r.example", "r.example"),
        ("http://r.example/", "r.example"),
        ("https://r.example/v1/", "r.example"),
        ("https://r.example/v2/", "r.example"),
        ("https://r.example/v2", "r.example"),
        ("https://r.example/v2/team", "r.example/team"),
        ("r.example/team/App", "r.example/team/App"),
        ("r.example/v20/app", "r.example/v20/app"),
        ("https://index.docker.io/v1/", "index.docker.io"),
        ("https://user:secret@r.example/team?x=y#z", "r.example/team"),
        ("*.r.example/team", "*.r.example/team"),
        ("[::1]:5000/team", "[::1]:5000/team"),
        ("", ""),
    ],
)
def test_key_is_reduced_from_a_location(location: str, key: str) -> None:
    assert key_from_location(location) == key


@pytest.mark.parametrize(
    ("key", "repository"),
    [
        ("r.example", "r.example/app"),
        ("r.example:5000", "r.example:5000/app"),
        ("r.example/team", "r.example/team/app"),
        ("r.example/team", "r.example/team2"),
        ("r.example/team/app", "r.example/team/app"),
        ("*.example", "r.example/app"),
        ("*.*.example", "a.r.example/app"),
        ("r*.example", "r12.example/app"),
        ("r*y.exa*", "registry.example/app"),
        ("*.example:5000/team", "r.example:5000/team/app"),
        ("R.example", "r.Example/app"),
        ("[::1]:5000", "[::1]:5000/app"),
        ("[::1]", "[::1]/app"),
        ("docker.io", "docker.io/library/busybox"),
        ("docker.io/library", "docker.io/library/busybox"),
        ("localhost", "localhost/app"),
    ],
)
def test_matching_entries_are_found(key: str, repository: str) -> None:
    assert matches(key, repository)


@pytest.mark.parametrize(
    ("key", "repository"),
    [
        ("r.example", "other.example/app"),
        ("r.example", "r.example:5000/app"),
        ("r.example:5000", "r.example/app"),
        ("r.example:5000", "r.example:5001/app"),
        ("r.example:*", "r.example:5000/app"),
        ("r.example", "a.r.example/app"),
        ("*.example", "a.r.example/app"),
        ("*.example", "example/app"),
        ("*", "r.example/app"),
        ("r.example", "r.example.evil/app"),
        ("r.example/team", "r.example/other/app"),
        ("r.example/team/app", "r.example/team"),
        ("r.example/Team", "r.example/team"),
        ("r.example/*", "r.example/app"),
        ("rxexample", "r.example/app"),
        ("", "r.example/app"),
        ("[::1]", "[::1]:5000/app"),
    ],
)
def test_other_entries_are_not_found(key: str, repository: str) -> None:
    assert not matches(key, repository)


def test_more_specific_entries_come_first() -> None:
    keys = ["*.example", "r.example", "r.example/team", "*.example/team/app", "r.example/team/app", "other.example"]
    found = fitting([(key, None) for key in keys], "r.example/team/app/web")
    assert [key for key, _ in found] == [
        "r.example/team/app",
        "r.example/team",
        "r.example",
        "*.example/team/app",
        "*.example",
    ]


def test_entries_of_one_key_keep_their_order() -> None:
    assert fitting([("r.example", 1), ("r.example", 2)], "r.example/app") == [("r.example", 1), ("r.example", 2)]


@pytest.mark.parametrize(
    ("keys", "repository", "chosen"),
    [
        (["index.docker.io"], "docker.io/library/busybox", ["index.docker.io"]),
        (["index.docker.io", "docker.io"], "docker.io/library/busybox", ["docker.io"]),
        (["index.docker.io", "docker.io/team"], "docker.io/library/busybox", ["index.docker.io"]),
        (["index.docker.io"], "r.example/app", []),
    ],
)
def test_entry_for_docker_hub_matches_its_default_domain(keys: list[str], repository: str, chosen: list[str]) -> None:
    assert [key for key, _ in fitting([(key, None) for key in keys], repository)] == chosen


@given(host=st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,3}(:[0-9]{1,4})?", fullmatch=True), path=st.just("team/app"))
def test_host_matches_itself_but_no_subdomain(host: str, path: str) -> None:
    assert matches(key_from_location(f"https://{host}/v2/"), f"{host}/{path}")
    assert not matches(host, f"evil.{host}/{path}")


@given(st.text("ab.*", max_size=8), st.text("ab.", max_size=10))
def test_wildcards_match_like_an_exhaustive_search(pattern: str, host: str) -> None:
    every_way = re.compile("[^.]*".join(re.escape(part) for part in pattern.split("*")))

    assert matches(f"{pattern}/", f"{host}/app") == bool(every_way.fullmatch(host))


@pytest.mark.timeout(60)
def test_many_wildcards_match_fast() -> None:
    assert not matches("*a" * 40 + "b/", "a" * 250 + "/app")
