import os
from pathlib import Path

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, FailedPrecondition, ShimError
from shim.hostfs import relabel as module
from shim.hostfs.relabel import label_file, relabel
from tests.facts import open_descriptors
from tests.mounts import need_root

LABEL = "system_u:object_r:container_file_t:s0:c1,c2"
XATTR = "trusted.label"
"""Stands for SELinux's, which needs a kernel that has it; unlike `user.*` it is allowed on links and FIFOs, too."""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A directory with each kind of file that a container may leave."""
    need_root()
    top = tmp_path / "volume"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/file").touch()
    (tmp_path / "outside").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    (top / "link").symlink_to(tmp_path / "outside")
    (top / "a/directory-link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(top / "a/fifo")
    (top / b"odd\xff\n".decode(errors="surrogateescape")).touch()
    return top


def labels(top: Path) -> dict[str, str]:
    found = {}
    for path in (top, *top.rglob("*")):
        if XATTR in os.listxattr(path, follow_symlinks=False):
            found[str(path.relative_to(top))] = os.getxattr(path, XATTR, follow_symlinks=False).decode()
    return found


def test_tree_gets_the_label_and_nothing_else_does(volume: Path) -> None:
    relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert labels(volume) == {str(path.relative_to(volume)): LABEL for path in (volume, *volume.rglob("*"))}
    assert len(labels(volume)) == 8
    assert labels(volume.parent / "outside") == {}
    assert labels(volume.parent / "elsewhere") == {}


def test_a_file_gets_the_label(volume: Path) -> None:
    relabel(volume / "a/b/file", label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert labels(volume) == {"a/b/file": LABEL}


def test_different_label_is_replaced_and_an_equal_label_is_not_written(volume: Path) -> None:
    relabel(volume, label="another", field="config.mounts[0]", xattr=XATTR)
    os.setxattr(volume / "a/b/file", XATTR, LABEL.encode() + b"\0")
    before = (volume / "a/b/file").stat().st_ctime_ns

    relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert set(labels(volume).values()) == {LABEL, LABEL + "\0"}
    assert (volume / "a/b/file").stat().st_ctime_ns == before


def test_server_file_gets_the_label(volume: Path) -> None:
    label_file(volume / "a/b/file", label=LABEL, xattr=XATTR)
    assert labels(volume) == {"a/b/file": LABEL}

    with pytest.raises(ShimError, match=rf"^label {volume}/a/fifo as {LABEL}: operation not permitted"):
        label_file(volume / "a/fifo", label=LABEL, xattr="user.label")


def test_a_file_system_without_labels_is_left_alone(tmp_path: Path) -> None:
    relabel(Path(f"/proc/{os.getpid()}/net"), label=LABEL, field="config.mounts[0]", xattr=XATTR)


def test_directory_replaced_by_a_link_is_an_error(volume: Path) -> None:
    """A process that may write above the source can swap it between the check of the path and the labelling."""
    (volume.parent / "elsewhere/b").mkdir()
    (volume / "a").rename(volume / "former")
    (volume / "a").symlink_to(volume.parent / "elsewhere")

    with pytest.raises(FailedPrecondition, match=rf"selinux_relabel: label {volume}/a/b as .*: not a directory"):
        relabel(volume / "a/b", label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert labels(volume.parent) == {}


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "/home", "/var/lib", "/etc/passwd"])
def test_system_directories_are_refused(path: str) -> None:
    with pytest.raises(
        FailedPrecondition, match=rf"config\.mounts\[3\]\.selinux_relabel: {path} is a system directory"
    ):
        relabel(Path(path), label=LABEL, field="config.mounts[3]", xattr=XATTR)


def test_file_system_error_is_reported(volume: Path) -> None:
    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[0\]\.selinux_relabel: label {volume} as "):
        relabel(volume, label=LABEL, field="config.mounts[0]", xattr="user.label")  # not for links


def test_nesting_is_bounded(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEPTH", 2)
    relabel(volume / "a", label=LABEL, field="config.mounts[0]", xattr=XATTR)
    with pytest.raises(FailedPrecondition, match="more than 2 nested directories"):
        relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)


def test_relabelling_ends_with_the_request(volume: Path) -> None:
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled, match="relabel"):
        relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)


def test_no_descriptor_is_left_open(volume: Path) -> None:
    before = open_descriptors()
    relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)
    with pytest.raises(FailedPrecondition):
        relabel(volume, label=LABEL, field="config.mounts[0]", xattr="user.label")
    assert open_descriptors() == before
