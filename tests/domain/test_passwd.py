"""passwd and group files, including malformed ones."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shim.domain.passwd import MAX_ID, Accounts, Group, User, accounts_from_files, id_from_text, is_number, names_in

PASSWD = b"""\
root:x:0:0:root:/root:/bin/sh
www:x:1000:1000:www:/home:/bin/sh
"""
GROUP = b"""\
root:x:0:
www:x:1000:
staff:x:50:www,root
video:x:44:www
"""


def test_both_files_are_parsed() -> None:
    found = accounts_from_files(passwd=PASSWD, group=GROUP)

    assert found.users == (User("root", 0, 0), User("www", 1000, 1000))
    assert found.groups[2] == Group("staff", 50, frozenset({"www", "root"}))


def test_users_are_found_by_name_and_by_number() -> None:
    found = accounts_from_files(passwd=PASSWD, group=GROUP)
    www = User("www", 1000, 1000)

    assert found.user_of("www") == found.user_of(1000) == www
    assert found.user_of("1000") is found.user_of("") is found.user_of(7) is None
    assert found.group_named("video") == Group("video", 44, frozenset({"www"}))
    assert found.group_named("44") is None
    assert found.memberships(www) == [50, 44]


def test_missing_files_hold_no_users() -> None:
    assert accounts_from_files(passwd=b"", group=b"") == Accounts()


@pytest.mark.parametrize(
    ("passwd", "users"),
    [
        (b"a:x:1:2", [User("a", 1, 2)]),
        (b"a:x:1:2:::\r\n", [User("a", 1, 2)]),
        (b"  a:x:1:2:::  \n", [User("a", 1, 2)]),
        (b"a::0001:2\n", [User("a", 1, 2)]),
        (b"a:x:%d:0\n" % MAX_ID, [User("a", MAX_ID, 0)]),
        (b"a:x:1:2:J\xfcrgen:/:\n", [User("a", 1, 2)]),
        ("jürgen:x:1:2\n".encode(), [User("jürgen", 1, 2)]),
        (b"a,b:x:1:2\n", [User("a,b", 1, 2)]),
        (b"a:x:1:2\na:x:3:4\n", [User("a", 1, 2), User("a", 3, 4)]),
        (b"", []),
        (b"\n\n \n", []),
        (b"a:x:1\n", []),
        (b":x:1:2\n", []),
        (b"# a:x:1:2\n#a:x:1:2\n", []),
        (b"a:x::2\n", []),
        (b"a:x:one:2\n", []),
        (b"a:x:-1:2\n", []),
        (b"a:x:+1:2\n", []),
        (b"a:x: 1:2\n", []),
        (b"a:x:1e3:2\n", []),
        (b"a:x:\xb2:2\n", []),
        (b"a:x:0x10:2\n", []),
        (b"a:x:1:%d\n" % (MAX_ID + 1), []),
        (b"a:x:%s:2\n" % (b"9" * 5000), []),
        (b"J\xfcrgen:x:1:2\n", []),
        (b"+::::::\n", []),
        (b"\x00\x00\n", []),
    ],
)
def test_a_malformed_user_line_is_skipped(passwd: bytes, users: list[User]) -> None:
    assert list(accounts_from_files(passwd=passwd, group=b"").users) == users


@pytest.mark.parametrize(
    ("group", "groups"),
    [
        (b"a:x:1", [Group("a", 1, frozenset())]),
        (b"a:x:1:\n", [Group("a", 1, frozenset())]),
        (b"a:x:1:,b,,c,\n", [Group("a", 1, frozenset({"b", "c"}))]),
        (b"a:x:1:b\xff,c\n", [Group("a", 1, frozenset({"c"}))]),
        (b"a:x\n", []),
        (b"a:x:y:b\n", []),
        (b":x:1:b\n", []),
    ],
)
def test_a_malformed_group_line_is_skipped(group: bytes, groups: list[Group]) -> None:
    assert list(accounts_from_files(passwd=b"", group=group).groups) == groups


@pytest.mark.parametrize(
    ("group", "impostors"),
    [
        (GROUP, set()),
        (b"1234:x:1234:\n", set()),
        (b"1234:x:0:\n", {1234}),
        (b"1234:x:1234:\n1234:x:0:\n", {1234}),
        (b"\t1234:x:0:\n", {1234}),
        ("\u3000\u00a01234:x:0:\n".encode(), {1234}),
        (b"1234:x:unreadable:\n", {1234}),
        (b"1234:x\n", {1234}),
        (b"1234 ", {1234}),
        (b"0:x:5:\n", {0}),
        # Text that cannot be meant as a number.
        (b"01234:x:0:\nx1234:x:0:\n1234 :x:0:\n12 34:x:0:\n", set()),
        (b"4294967296:x:0:\n", set()),
    ],
)
def test_groups_named_by_another_gid_are_impostors(group: bytes, impostors: set[int]) -> None:
    assert accounts_from_files(passwd=b"", group=group).impostors == impostors


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("00", 0), ("007", 7), (str(MAX_ID), MAX_ID), (str(MAX_ID + 1), None), ("9" * 9999, None)],
)
def test_numbers_above_the_maximum_are_refused(text: str, number: int | None) -> None:
    assert is_number(text)
    assert id_from_text(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "0x1", " 1", "²", "१", "one"])
def test_text_with_a_non_digit_is_a_name(text: str) -> None:
    assert not is_number(text)


@given(st.binary(max_size=200), st.binary(max_size=200))
@example(PASSWD, GROUP)
def test_garbage_never_yields_an_invalid_id(passwd: bytes, group: bytes) -> None:
    found = accounts_from_files(passwd=passwd, group=group)

    assert all(0 <= number <= MAX_ID for user in found.users for number in (user.uid, user.gid))
    assert all(0 <= each.gid <= MAX_ID for each in found.groups)
    assert all(user.name for user in found.users)


_NAME = st.text(st.characters(exclude_characters=":,\n\r#", exclude_categories=["Cs", "Z", "Cc"]), min_size=1)
_ID = st.integers(0, MAX_ID)
_JUNK = st.sampled_from([b"", b"junk", b":::", b"x:y", b"#c:x:1:1", b"\xff\xfe:x:1:1", b"a:x:b:c"])


@given(st.lists(st.tuples(_NAME, _ID, _ID, _JUNK)))
def test_users_are_found_among_garbage(entries: list[tuple[str, int, int, bytes]]) -> None:
    lines = [line for name, uid, gid, junk in entries for line in (junk, f"{name}:x:{uid}:{gid}::/:".encode())]

    found = accounts_from_files(passwd=b"\n".join(lines), group=b"")

    assert list(found.users) == [User(name, uid, gid) for name, uid, gid, _ in entries]


@given(st.binary(max_size=200), st.binary(max_size=200))
@example(b"", b"a:x:1:b,c\n")
def test_the_upper_bound_of_names_holds(passwd: bytes, group: bytes) -> None:
    found = accounts_from_files(passwd=passwd, group=group)

    assert len(found.users) <= names_in(passwd)
    assert sum(1 + len(one.members) for one in found.groups) <= 2 * names_in(group)
