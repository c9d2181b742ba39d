"""Parses users and groups from passwd(5) and group(5) files. Pure.

The files come from an image and are untrusted. A malformed line is skipped: a user with an unreadable uid must not
become uid 0. The first of two matching entries counts, like in libc.
"""

from collections.abc import Iterator
from dataclasses import dataclass

PASSWD, GROUP = "/etc/passwd", "/etc/group"
"""Paths of the files."""

MAX_LINES = 1 << 16
"""Lines of either file and members in group. Each takes some 200 bytes of memory, but as few as three in the file."""

MAX_ID = (1 << 31) - 1
"""Largest uid and gid that all of the kernel's tools accept; some give -1 and larger ids another meaning."""

_DIGITS = 10
"""Digits of MAX_ID."""


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
    """Names of users; users with this primary group may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Users and groups of a root file system."""

    users: tuple[User, ...] = ()
    groups: tuple[Group, ...] = ()
    impostors: frozenset[int] = frozenset()
    """Numbers that are the name of a group with another gid, including groups in skipped lines."""

    def user_of(self, who: str | int) -> User | None:
        """Return a user by name or uid."""
        return next((user for user in self.users if who in (user.name, user.uid)), None)

    def group_named(self, name: str) -> Group | None:
        """Return a group by name."""
        return next((group for group in self.groups if group.name == name), None)

    def memberships(self, user: User) -> list[int]:
        """Return the gids of all groups that list a user."""
        return [group.gid for group in self.groups if user.name in group.members]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAccounts:
    """The data of an image that determines the user of a container."""

    default_user: str
    """`USER` of the image: name or uid, optionally with `:group`; "" for root."""
    accounts: Accounts


def accounts_from_files(*, passwd: bytes, group: bytes) -> Accounts:
    """Parse the contents of both files; b"" for a missing file."""
    return Accounts(
        users=tuple(_users(passwd)),
        groups=tuple(_groups(group)),
        impostors=frozenset(_impostors(group)),
    )


def names_in(content: bytes) -> int:
    """Return an upper bound of the lines and members of a file, without parsing it."""
    return content.count(b"\n") + content.count(b",") + 1


def is_number(text: str) -> bool:
    """Return whether a user or group is given by number: digits are a number, even if a name is spelled like it."""
    return text.isascii() and text.isdigit()


def id_from_text(text: str) -> int | None:
    """Parse a number; return None if it exceeds MAX_ID."""
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
    """Yield the impostors that the most lenient parser finds: it strips any space and accepts malformed lines."""
    for line in group.split(b"\n"):
        name, *fields = line.decode(errors="replace").strip().split(":")
        number = id_from_text(name) if is_number(name) else None
        if number is not None and name == str(number) and fields[1:2] != [name]:
            yield number


def _lines(content: bytes, *, least: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield name and fields of each line with a name and at least `least` fields."""
    for line in content.split(b"\n"):
        fields = line.strip().split(b":")
        name = _name(fields[0])
        if name and len(fields) >= least and not name.startswith("#"):
            yield name, fields


def _name(field: bytes) -> str:
    """Return a name; "" if it is not UTF-8, since the CRI cannot name it. Other fields may have any encoding."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        return ""


def _id(field: bytes) -> int | None:
    text = field.decode("latin-1")
    return id_from_text(text) if is_number(text) else None
