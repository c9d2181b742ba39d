"""Reads an image's users and groups, and its default user, once per image."""

from shim.domain.errors import FailedPrecondition
from shim.domain.ids import ImageId
from shim.domain.passwd import GROUP, MAX_LINES, PASSWD, Accounts, ImageAccounts, accounts_from_files, names_in
from shim.image.rootfs import ImageFiles, inspect_rootfs
from shim.runtime import Runtime

FILE_LIMIT = 4 << 20
"""Maximum bytes of either file: some 60,000 users."""

_NAME_WEIGHT = 200
"""Bytes of memory per line or group member, in addition to its text."""
_ENTRY_WEIGHT = 4096
"""Bytes of memory per image, in addition to its files."""


def accounts_of(rt: Runtime, *, image_id: ImageId) -> ImageAccounts:
    """Return an image's accounts. The first call, or one of several concurrent calls, reads them through Docker.

    Raise NotFound if the image is gone, FailedPrecondition if its passwd or group file is not regular or is too large.
    """
    what = f"read the users of image {image_id}"
    return rt.accounts.get_or_load(image_id, lambda: _load(rt, image_id), what=what)


def _load(rt: Runtime, image_id: ImageId) -> tuple[ImageAccounts, int]:
    settings = rt.engine.inspect_image(image_id).config
    accounts, weight = inspect_rootfs(rt, image_id=image_id, read=read_accounts)
    if rt.view.images.is_listed():
        rt.accounts.keep_only([image.id for image in rt.view.images.all()])
    return ImageAccounts(default_user=settings.user if settings else "", accounts=accounts), weight


def _weight(content: bytes) -> int:
    return len(content) + names_in(content) * _NAME_WEIGHT


def read_accounts(files: ImageFiles) -> tuple[Accounts, int]:
    """Return the content of both files and its weight in memory. Raise FailedPrecondition like `accounts_of`."""
    passwd, group = _file(files, PASSWD), _file(files, GROUP)
    accounts = accounts_from_files(passwd=passwd, group=group)
    return accounts, _weight(passwd) + _weight(group) + _ENTRY_WEIGHT


def _file(files: ImageFiles, path: str) -> bytes:
    content = files.read_file(path, limit=FILE_LIMIT) or b""
    if names_in(content) > MAX_LINES:
        raise FailedPrecondition(f"{path} of image {files.image_id} has more than {MAX_LINES} lines and members")
    return content
