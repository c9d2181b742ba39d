import errno
import os
from pathlib import Path

import pytest

from shim.cgroup.writes import Write, check_there, contents, put_back, write_all
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError


@pytest.fixture
def group(tmp_path: Path) -> Path:
    directory = tmp_path / "group"
    directory.mkdir()
    (directory / "memory.high").write_text("max\n")
    return directory


def write(group: Path, name: str = "memory.high", text: str = "4096", *, optional: bool = False) -> Write:
    return Write(str(group / name), text, f"linux.unified[{name!r}]", optional=optional)


def test_what_was_written_is_there(group: Path) -> None:
    assert write_all([write(group)])
    assert (group / "memory.high").read_text() == "4096"


def test_a_file_that_is_not_there(group: Path) -> None:
    absent = write(group, "memory.no_such")
    with pytest.raises(FailedPrecondition, match=r"linux\.unified\['memory\.no_such'\]: this node has no memory\.no_s"):
        check_there([write(group), absent])
    with pytest.raises(FailedPrecondition, match=r"write '4096' to memory\.no_such: no such file"):
        write_all([absent])
    assert not (group / "memory.no_such").exists()


def test_a_file_that_need_not_be_there(group: Path) -> None:
    optional = write(group, "memory.swap.max", optional=True)
    check_there([optional])
    assert write_all([optional, write(group)])
    assert sorted(path.name for path in group.iterdir()) == ["memory.high"]


def test_a_link_is_not_followed(group: Path, tmp_path: Path) -> None:
    (group / "memory.low").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedPrecondition, match=r"memory\.low"):
        write_all([write(group, "memory.low")])
    assert not (tmp_path / "elsewhere").exists()


def test_a_group_that_has_gone(group: Path) -> None:
    former = contents([str(group / "memory.high")])
    (group / "memory.high").unlink()
    group.rmdir()
    assert not write_all([write(group)])
    put_back(former)
    assert not group.exists()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EINVAL, InvalidArgument), (errno.ERANGE, InvalidArgument), (errno.EBUSY, FailedPrecondition)],
    ids=["bad value", "too large", "in use"],
)
def test_a_value_the_kernel_refuses(
    group: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ShimError]
) -> None:
    def refuse(_descriptor: int, _content: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(kind, match=r"linux\.unified\['memory\.high'\]: write '4096' to memory\.high: "):
        write_all([write(group)])


def test_what_was_there_is_put_back(group: Path) -> None:
    former = contents([str(group / "memory.high"), str(group / "memory.no_such")])
    write_all([write(group)])
    put_back(former)
    assert (group / "memory.high").read_text() == "max\n"


def test_files_that_depend_on_each_other_are_put_back_in_the_order_that_works(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a limit of memory above that of memory and swap; the first file is tried first."""
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
            real(descriptor, b"16\n")  # opening it has emptied it, which the kernel does not
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", like_the_kernel)
    put_back(former)
    assert (memory.read_text(), both.read_text()) == ("64\n", "64\n")


def test_a_file_that_cannot_be_put_back_is_named(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = contents([str(group / "memory.high")])
    write_all([write(group)])
    monkeypatch.setattr(os, "write", lambda _descriptor, content: len(content))
    with pytest.raises(ShimError, match=r"memory\.high is '' and not 'max' again"):
        put_back(former)
