"""Inputs from images: users and groups, archives of files, names."""

import io
import tarfile
from collections.abc import Iterator

from shim.api.v1 import api_pb2 as pb
from shim.domain import references
from shim.domain.errors import InvalidArgument, ShimError
from shim.domain.passwd import MAX_ID, ImageAccounts
from shim.engine.answers import PathStat
from shim.image.accounts import read_accounts
from shim.image.rootfs import ImageFiles, file_from_tar
from shim.spec.users import identity
from tests.fuzz.target import Target, pure

PASSWD = b"root:x:0:0:root:/root:/bin/sh\nwww:x:1000:1000::/:\n"
GROUP = b"root:x:0:\nstaff:x:50:www,root\nvideo:x:44:www\n"
NAMES = (
    b"busybox",
    b"r.example:5000/team/app:1.0@sha256:" + b"a" * 64,
    b"[::1]:5000/a_b/c--d:x",
    b"sha256:" + b"0" * 64,
)


class _Files:
    """An Engine with only the calls for files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def stat_path(self, _container_id: str, path: str) -> PathStat | None:
        return PathStat(size=len(self._files[path])) if path in self._files else None

    def archive(self, _container_id: str, path: str) -> "_Pieces":
        return _Pieces(archive_of(self._files[path]))


class _Pieces:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __enter__(self) -> Iterator[bytes]:
        return iter([self._content[:1000], self._content[1000:]])

    def __exit__(self, *_: object) -> None:
        return None


def archive_of(content: bytes, *, style: int = tarfile.GNU_FORMAT, name: str = "passwd") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=style) as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        entry.pax_headers = {"SCHILY.xattr.user.a": "b"} if style == tarfile.PAX_FORMAT else {}
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _accounts(data: bytes) -> None:
    passwd, _, group = data.partition(b"\0")
    files = ImageFiles(_Files({"/etc/passwd": passwd, "/etc/group": group}), container_id="c", image_id="i")  # type: ignore[arg-type]
    accounts = read_accounts(files)[0]
    assert all(0 <= user.uid <= MAX_ID and 0 <= user.gid <= MAX_ID for user in accounts.users)
    for user in accounts.users[:50]:
        found = ImageAccounts(default_user=user.name, accounts=accounts)
        try:
            who = identity(pb.LinuxContainerSecurityContext(), found, image="i")
        except ShimError:
            continue
        assert 0 <= who.uid <= MAX_ID
        assert all(0 <= gid <= MAX_ID for gid in who.groups)


def _archive(data: bytes) -> None:
    """Read the archive with a bound of 4 bytes, and with a bound of its size."""
    found = []
    for size in (4, max(0, len(data) - 1024)):
        try:
            content = file_from_tar([data[:700], data[700:]], size=size, what="/etc/passwd")
            assert len(content) == size
        except ShimError as error:
            found.append(error)
    if len(found) == 2:
        raise found[0]


def _reference(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    references.image_id(text)
    references.image_id_prefix(text)
    canonical = references.canonical(text)
    assert references.canonical(canonical) == canonical
    assert references.canonical(references.familiar(canonical)) == canonical
    assert len(references.parse(canonical).path) <= references.MAX_PATH


TARGETS = (
    Target(
        name="image-accounts",
        corpus=[PASSWD + b"\0" + GROUP],
        words=(b":", b"\n", b",", b"4294967295", b"-1", b"#", b"+", b"x:0:0", b"\0", b"\xc3"),
        declared=(ShimError,),
        open=pure(_accounts),
        memory=96 << 20,
        seconds=20.0,
        enormous=(
            lambda: b"a:x:1:1\n" * ((4 << 20) // 8),
            lambda: b"\0a:x:1:" + b"".join(b"%x," % number for number in range(600_000)),
            lambda: b"%b:x:1:1\n" % (b"a" * (3 << 20)) + b"\0",
            lambda: b"\n" * (5 << 20),
            lambda: b"".join(b"%x:x:1:1\n" % number for number in range(60_000)) + b"\0" + GROUP * 10_000,
        ),
    ),
    Target(
        name="image-archive",
        corpus=[
            archive_of(b"data"),
            archive_of(b"data" * 500, style=tarfile.PAX_FORMAT),
            archive_of(b"data", name="x" * 300),
            archive_of(b"data") + archive_of(b"more"),
        ],
        words=(
            b"ustar  \0",
            b"ustar\x0000",
            b"L",
            b"K",
            b"S",
            b"x",
            b"g",
            b"20 size=9999999999\n",
            b"GNU.sparse.map=0,1\n",
            b"\x80",
        ),
        declared=(ShimError,),
        open=pure(_archive),
        enormous=(lambda: archive_of(b"x" * (4 << 20)),),
        memory=32 << 20,
    ),
    Target(
        name="image-reference",
        corpus=NAMES,
        words=(
            b"/",
            b":",
            b"@",
            b"sha256:",
            b"docker.io/",
            b"library/",
            b"--",
            b"__",
            b".",
            b"index.docker.io/",
            b"localhost/",
        ),
        declared=(InvalidArgument,),
        open=pure(_reference),
        enormous=(lambda: b"a-" * 500_000, lambda: b"a/" * 500_000, lambda: b"a" * (1 << 20)),
    ),
)
