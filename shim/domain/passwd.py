"""Users and groups as the files passwd(5) and group(5) tell them. Pure.

The files are an image's, hence anybody's. A line that is not one of theirs is passed over and never half understood: a
user whose number cannot be read does not become number 0. Of two entries that fit, the first counts, as in libc.
"""

from collections.abc import Iterator
from dataclasses import dataclass

PASSWD, GROUP = "/etc/passwd", "/etc/group"
"""Where they are."""

MAX_LINES = 1 << 16
"""Lines of either file, and members in group: each takes some 200 bytes of memory, of as few as three in the file."""

MAX_ID = (1 << 31) - 1
"""Largest uid and gid the kernel's tools agree on; -1 and what is above means other things to some of them."""

_DIGITS = 10
"""As many as MAX_ID has."""


@dataclass(frozen=True, slots=True)
class User:
    """A line of passwd."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Group:
    """A line of group."""

    name: str
    gid: int
    members: frozenset[str]
    """Names of users, those whose primary group it is perhaps left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Who is known in a root file system."""

    users: tuple[User, ...] = ()
    groups: tuple[Group, ...] = ()
    impostors: frozenset[int] = frozenset()
    """Numbers that are the name of a group of another number, also in lines that are passed over here."""

    def user_of(self, who: str | int) -> User | None:
        """Find a user by name or uid."""
        return next((user for user in self.users if who in (user.name, user.uid)), None)

    def group_named(self, name: str) -> Group | None:
        """Find a group by name."""
        return next((group for group in self.groups if group.name == name), None)

    def memberships(self, user: User) -> list[int]:
        """The gids of all groups that list a user."""
        return [group.gid for group in self.groups if user.name in group.members]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAccounts:
    """What of an image decides who a container of it runs as."""

    default_user: str
    """`USER` of the image: name or uid, perhaps with `:group`; empty for root."""
    accounts: Accounts


def accounts_from_files(*, passwd: bytes, group: bytes) -> Accounts:
    """Read the content of both files; empty for one that is not there."""
    return Accounts(
        users=tuple(_users(passwd)),
        groups=tuple(_groups(group)),
        impostors=frozenset(_impostors(group)),
    )


def names_in(content: bytes) -> int:
    """Return how many lines and members one of the files has at most, without reading them."""
    return content.count(b"\n") + content.count(b",") + 1


def is_number(text: str) -> bool:
    """Whether a user or group is given by number: what consists of digits is one, also where a name reads the same."""
    return text.isascii() and text.isdigit()


def id_from_text(text: str) -> int | None:
    """Read a number; None for one above MAX_ID."""
    digits = text.lstrip("0") or "0"
    number = int(digits) if len(digits) <= _DIGITS else MAX_ID + 1
    return number if number <= MAX_ID else None


def _users(passwd: bytes) -> Iterator[User]:
    for name, fields in _lines(passwd, least=4):
        uid, gid = _id(fields[2]), _id(fields[3])
        if uid is not None and gid is not None:
            yield User(name, uid, gid)


def _groups(group: bytes) -> Iterator[Group]:
    for name, fields in _lines(group, least=3):
        gid = _id(fields[2])
        if gid is not None:
            members = fields[3].split(b",") if len(fields) > 3 else []
            yield Group(name, gid, frozenset(member for member in map(_name, members) if member))


def _impostors(group: bytes) -> Iterator[int]:
    """Yield them as the most lenient reader finds them: one that cuts off any space, and takes what it cannot read."""
    for line in group.split(b"\n"):
        name, *fields = line.decode(errors="replace").strip().split(":")
        number = id_from_text(name) if is_number(name) else None
        if number is not None and name == str(number) and fields[1:2] != [name]:
            yield number


def _lines(content: bytes, *, least: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the name and all fields of each line that has a name and at least `least` fields."""
    for line in content.split(b"\n"):
        fields = line.strip().split(b":")
        name = _name(fields[0])
        if name and len(fields) >= least and not name.startswith("#"):
            yield name, fields


def _name(field: bytes) -> str:
    """Read a name; one that is not UTF-8 is nobody the CRI can name. Other fields may have any encoding."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        return ""


def _id(field: bytes) -> int | None:
    text = field.decode("latin-1")
    return id_from_text(text) if is_number(text) else None
