"""Writing the files of a control group, and putting them back as they were."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shim.base.proc import lines
from shim.cgroup.files import read
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError, reason_of

_REFUSED_VALUE = frozenset({errno.EINVAL, errno.ERANGE, errno.E2BIG})


@dataclass(frozen=True, slots=True)
class Write:
    """What a file is to hold."""

    path: str
    text: str
    field: str
    """Of the request that asked for it."""
    optional: bool = False
    """Whether a kernel without this file does as well."""


def check_there(writes: Iterable[Write]) -> None:
    """Check that every file that is needed is there and may be written.

    Raise FailedPrecondition, which names the first other.
    """
    for write in writes:
        if not write.optional and not os.access(write.path, os.W_OK):
            raise FailedPrecondition(f"{write.field}: this node has no {_shown(write.path)} to write to")


def write_all(writes: Sequence[Write]) -> bool:
    """Write in order; False when the group has gone, and with it what was to be limited.

    Raise InvalidArgument, which names the field whose value the kernel does not take, FailedPrecondition the file that
    cannot be written.
    """
    for write in writes:
        try:
            _write(write.path, write.text.encode() or b"\n")
        except OSError as error:
            if not os.path.isdir(os.path.dirname(write.path)):  # noqa: PTH112, PTH120 - paths are texts here
                return False
            if write.optional and error.errno == errno.ENOENT:
                continue
            raise _refusal(write, error) from error
    return True


def contents(paths: Iterable[str]) -> dict[str, bytes]:
    """Read files to put back later; those that are not there are left out."""
    return {path: content for path in paths if (content := read(path)) is not None}


def put_back(former: Mapping[str, bytes]) -> None:
    """Write the former content back to files.

    Raise ShimError, which names one that does not; a group that has gone is fine.

    One file may refuse its value until another has its own back (a limit of memory that is not to be above that of
    memory and swap): so again, as long as it helps.
    """
    different = _different(former)
    while different:
        failed = _written_back(different)
        left = _different(different)
        if len(left) == len(different):
            path = min(left)
            raise ShimError(f"{path} is {_text(read(path))!r} and not {_text(left[path])!r} again: {failed.get(path)}")
        different = left


def _different(former: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in former.items() if (now := read(path)) is not None and now != content}


def _written_back(former: Mapping[str, bytes]) -> dict[str, str]:
    failed = {}
    for path, content in former.items():
        # Files with a line for each device take one at a time.
        for line in lines(content) or [b""]:
            try:
                _write(path, line + b"\n")
            except OSError as error:
                failed[path] = reason_of(error)
    return failed


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _refusal(write: Write, error: OSError) -> ShimError:
    reason = reason_of(error)
    kind = InvalidArgument if error.errno in _REFUSED_VALUE else FailedPrecondition
    return kind(f"{write.field}: write {write.text!r} to {_shown(write.path)}: {reason}")


def _shown(path: str) -> str:
    """Return the file's own name: the directory holds the id, which the message has elsewhere."""
    return path.rpartition("/")[2]


def _text(content: bytes | None) -> str:
    return "gone" if content is None else content.decode(errors="replace").strip()
