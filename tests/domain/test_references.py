"""References are parsed and formatted by the distribution grammar."""

import string

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from shim.domain import references
from shim.domain.errors import InvalidArgument

HEX = "0123456789abcdef" * 4
DIGEST = "sha256:" + HEX


@pytest.mark.parametrize(
    ("text", "canonical", "familiar"),
    [
        ("busybox", "docker.io/library/busybox:latest", "busybox"),
        ("busybox:1.36", "docker.io/library/busybox:1.36", "busybox:1.36"),
        ("library/busybox", "docker.io/library/busybox:latest", "busybox"),
        ("docker.io/busybox", "docker.io/library/busybox:latest", "busybox"),
        ("index.docker.io/library/busybox:1", "docker.io/library/busybox:1", "busybox:1"),
        ("user/app", "docker.io/user/app:latest", "user/app"),
        ("library/team/app", "docker.io/library/team/app:latest", "library/team/app"),
        ("docker.io/foo.bar/app:1", "docker.io/foo.bar/app:1", "docker.io/foo.bar/app:1"),
        ("docker.io/localhost/app:1", "docker.io/localhost/app:1", "docker.io/localhost/app:1"),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
        ("localhost/app", "localhost/app:latest", "localhost/app"),
        ("localhost:5000/team/app:v1", "localhost:5000/team/app:v1", "localhost:5000/team/app:v1"),
        ("registry:5000/app", "registry:5000/app:latest", "registry:5000/app"),
        ("Registry/app", "Registry/app:latest", "Registry/app"),
        ("[::1]:5000/app", "[::1]:5000/app:latest", "[::1]:5000/app"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}", f"busybox@{DIGEST}"),
        (f"busybox:1@{DIGEST}", f"docker.io/library/busybox@{DIGEST}", f"busybox:1@{DIGEST}"),
        ("a__b/c-d.e--f", "docker.io/a__b/c-d.e--f:latest", "a__b/c-d.e--f"),
        ("host:5000", "docker.io/library/host:5000", "host:5000"),
        ("sha256:abcd", "docker.io/library/sha256:abcd", "sha256:abcd"),
        (f"registry.example/{'a' * 255}", f"registry.example/{'a' * 255}:latest", f"registry.example/{'a' * 255}"),
    ],
)
def test_references_are_parsed_in_every_form(text: str, canonical: str, familiar: str) -> None:
    assert references.canonical(text) == canonical
    assert references.familiar(text) == familiar


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("Busybox", "capitals in its repository"),
        ("docker.io/library/BusyBox:1", "capitals in its repository"),
        ("busybox:", "malformed tag"),
        ("busybox:-x", "malformed tag"),
        ("busybox:" + "t" * 129, "malformed tag"),
        ("busybox@", "malformed digest"),
        ("busybox@sha256:abcd", "malformed digest"),
        (f"busybox@md5:{HEX}", "malformed digest"),
        (f"busybox@{DIGEST.upper()}", "malformed digest"),
        (":tag", "malformed repository"),
        (f"@{DIGEST}", "malformed repository"),
        ("a//b", "malformed repository"),
        ("a___b", "malformed repository"),
        ("a..b", "malformed repository"),
        ("/app", "malformed repository"),
        ("registry.example/", "malformed repository"),
        ("busy box", "malformed repository"),
        ("busybox\n", "malformed repository"),
        ("-registry.example/app", "malformed registry"),
        ("registry.example:port/app", "malformed registry"),
        (HEX, "is an image id"),
        ("a" * 256, "more than 255"),
        ("registry.example/" + "a" * 256, "more than 255"),
    ],
)
def test_malformed_references_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        references.parse(text)
    assert words in str(caught.value)
    assert not text or repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEX, DIGEST),
        (DIGEST, DIGEST),
        (HEX[:63], None),
        (HEX.upper(), None),
        ("sha512:" + HEX, None),
        (f"busybox@{DIGEST}", None),
    ],
)
def test_image_ids_are_recognised(text: str, expected: str | None) -> None:
    assert references.image_id(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", "sha256:abc"),
        ("sha256:abc", "sha256:abc"),
        ("", None),
        ("sha256:", None),
        ("xyz", None),
        ("ABC", None),
    ],
)
def test_prefixes_of_image_ids_are_recognised(text: str, expected: str | None) -> None:
    assert references.image_id_prefix(text) == expected


def parts(alphabet: str, separators: list[str]) -> st.SearchStrategy[str]:
    """Words of this alphabet, with separators between them."""
    word = st.text(alphabet, min_size=1, max_size=5)
    more = st.lists(st.tuples(st.sampled_from(separators), word).map("".join), max_size=2)
    return st.tuples(word, more.map("".join)).map("".join)


LOWER = string.ascii_lowercase + string.digits
COMPONENT = parts(LOWER, [".", "_", "__", "-", "--"]) | st.sampled_from(
    ["library", "localhost", "docker.io", "index.docker.io", "r.example", "a" * 64, "sha256"]
)
HOST = (
    parts(string.ascii_letters + string.digits, [".", "-"])
    | st.sampled_from(["localhost", "docker.io", "index.docker.io", "registry.example"])
    | st.ip_addresses(v=6).map(lambda address: f"[{address}]")
)
DOMAIN = st.tuples(HOST, st.just("") | st.integers(0, 65535).map(":{}".format)).map("".join)
PATH = st.lists(COMPONENT, min_size=1, max_size=3).map("/".join)
TAG = st.just("") | st.from_regex(r"\A:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}\Z")
DIGITS = st.sampled_from([("sha256", 64), ("sha384", 96), ("sha512", 128)])
DIGESTS = st.just("") | DIGITS.flatmap(
    lambda kind: st.text("0123456789abcdef", min_size=kind[1], max_size=kind[1]).map(lambda hex_: f"@{kind[0]}:{hex_}")
)
WRITTEN = st.tuples(st.just("") | DOMAIN.map("{}/".format), PATH, TAG, DIGESTS).map("".join)
"""References in all forms; a few are refused: an image id, or a path whose first part looks like a domain."""


@settings(deadline=None)
@given(WRITTEN)
def test_the_canonical_form_is_stable(text: str) -> None:
    try:
        spelled = references.canonical(text)
    except InvalidArgument:
        reject()
    assert references.canonical(spelled) == spelled
    assert references.canonical(references.familiar(spelled)) == spelled


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        spelled = references.canonical(text)
    except InvalidArgument:
        return
    assert references.canonical(spelled) == spelled
    assert references.canonical(references.familiar(spelled)) == spelled


def test_a_reference_of_1025_characters_is_too_long() -> None:
    tail = ":" + "t" * 20
    with pytest.raises(InvalidArgument, match="has 1025 characters, at most 1024"):
        references.parse("a" * (1025 - len(tail)) + tail)


def test_the_refusal_of_a_long_reference_is_short() -> None:
    with pytest.raises(InvalidArgument, match=r"image reference 'a-a-.*'\.\.\. has 60000001 characters, at most 1024"):
        references.parse("a-" * 30_000_000 + "a")
