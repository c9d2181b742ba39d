import errno
import os
from pathlib import Path

import pytest

from shim.cgroup.writes import Write, check_writable, contents, restore, write_all
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError


@pytest.fixture
def group(tmp_path: Path) -> Path:
    directory = tmp_path / "group"
    directory.mkdir()
    (directory / "memory.high").write_text("max\n")
    return directory


def write(group: Path, name: str = "memory.high", text: str = "4096", *, optional: bool = False) -> Write:
    return Write(str(group / name), text, f"linux.unified[{name!r}]", optional=optional)


def test_write_all_writes_the_text(group: Path) -> None:
    assert write_all([write(group)])
    assert (group / "memory.high").read_text() == "4096"


def test_a_missing_file_is_refused(group: Path) -> None:
    absent = write(group, "memory.no_such")
    with pytest.raises(FailedPrecondition, match=r"linux\.unified\['memory\.no_such'\]: this node has no memory\.no_s"):
        check_writable([write(group), absent])
    with pytest.raises(FailedPrecondition, match=r"write '4096' to memory\.no_such: no such file"):
        write_all([absent])
    assert not (group / "memory.no_such").exists()


def test_a_missing_optional_file_is_skipped(group: Path) -> None:
    optional = write(group, "memory.swap.max", optional=True)
    check_writable([optional])
    assert write_all([optional, write(group)])
    assert sorted(path.name for path in group.iterdir()) == ["memory.high"]


def test_a_symbolic_link_is_not_followed(group: Path, tmp_path: Path) -> None:
    (group / "memory.low").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedPrecondition, match=r"memory\.low"):
        write_all([write(group, "memory.low")])
    assert not (tmp_path / "elsewhere").exists()


def test_a_removed_group_is_no_error(group: Path) -> None:
    former = contents([str(group / "memory.high")])
    (group / "memory.high").unlink()
    group.rmdir()
    assert not write_all([write(group)])
    restore(former)
    assert not group.exists()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EINVAL, InvalidArgument), (errno.ERANGE, InvalidArgument), (errno.EBUSY, FailedPrecondition)],
    ids=["bad value", "too large", "in use"],
)
def test_a_refused_value_names_the_field_and_the_file(
    group: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ShimError]
) -> None:
    def refuse(_descriptor: int, _content: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(kind, match=r"linux\.unified\['memory\.high'\]: write '4096' to memory\.high: "):
        write_all([write(group)])


def test_restore_writes_the_former_content(group: Path) -> None:
    former = contents([str(group / "memory.high"), str(group / "memory.no_such")])
    write_all([write(group)])
    restore(former)
    assert (group / "memory.high").read_text() == "max\n"


def test_restore_retries_files_that_depend_on_each_other(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses a memory limit above the limit of memory plus swap; the first file is tried first."""
    memory, both = group / "1-memory.limit_in_bytes", group / "2-memory.memsw.limit_in_bytes"
    memory.write_text("64\n")
    both.write_text("64\n")
    former = contents([str(memory), str(both)])
    memory.write_text("16\n")
    both.write_text("16\n")
    real = os.write

    def like_the_kernel(descriptor: int, content: bytes) -> int:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == memory and int(content) > int(both.read_text()):
            real(descriptor, b"16\n")  # the open has emptied this file; it would not empty the kernel's
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", like_the_kernel)
    restore(former)
    assert (memory.read_text(), both.read_text()) == ("64\n", "64\n")


def test_a_file_that_cannot_be_restored_is_named(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = contents([str(group / "memory.high")])
    write_all([write(group)])
    monkeypatch.setattr(os, "write", lambda _descriptor, content: len(content))
    with pytest.raises(ShimError, match=r"memory\.high is '' and not 'max' again"):
        restore(former)
