"""Writes the files of a control group, and restores their former content."""

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
    """A value for a file."""

    path: str
    text: str
    field: str
    """The field of the request that sets the value."""
    optional: bool = False
    """Whether the write may be skipped if the kernel lacks the file."""


def check_writable(writes: Iterable[Write]) -> None:
    """Check that every required file is writable. Raise FailedPrecondition for the first that is not."""
    for write in writes:
        if not write.optional and not os.access(write.path, os.W_OK):
            raise FailedPrecondition(f"{write.field}: this node has no {_name(write.path)} to write to")


def write_all(writes: Sequence[Write]) -> bool:
    """Write in order; return False if the group is gone, so that nothing is left to limit.

    Raise InvalidArgument if the kernel refuses a value, FailedPrecondition if a file cannot be written.
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
    """Return the content of files, for `restore`; missing files are left out."""
    return {path: content for path in paths if (content := read(path)) is not None}


def restore(former: Mapping[str, bytes]) -> None:
    """Write the former content back to files; a removed group is no error.

    A file may refuse its value until another file has been restored: the limit of memory may not exceed the limit of
    memory plus swap. So this repeats while it makes progress. Raise ShimError, which names a file that keeps its value.
    """
    different = _different(former)
    while different:
        failed = _write_back(different)
        left = _different(different)
        if len(left) == len(different):
            path = min(left)
            raise ShimError(f"{path} is {_text(read(path))!r} and not {_text(left[path])!r} again: {failed.get(path)}")
        different = left


def _different(former: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in former.items() if (now := read(path)) is not None and now != content}


def _write_back(former: Mapping[str, bytes]) -> dict[str, str]:
    """Return the cause of each failure by path."""
    failed = {}
    for path, content in former.items():
        # A file with a line for each device accepts one line in a write.
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
    return kind(f"{write.field}: write {write.text!r} to {_name(write.path)}: {reason}")


def _name(path: str) -> str:
    """Return the name of a file without its directory, which holds the container's id: the message has it already."""
    return path.rpartition("/")[2]


def _text(content: bytes | None) -> str:
    return "gone" if content is None else content.decode(errors="replace").strip()
