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
    """A directory with one of each that a container leaves."""
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


def test_everything_below_gets_the_label_and_nothing_else(volume: Path) -> None:
    relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert labels(volume) == {str(path.relative_to(volume)): LABEL for path in (volume, *volume.rglob("*"))}
    assert len(labels(volume)) == 8
    assert labels(volume.parent / "outside") == {}
    assert labels(volume.parent / "elsewhere") == {}


def test_a_file_gets_the_label(volume: Path) -> None:
    relabel(volume / "a/b/file", label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert labels(volume) == {"a/b/file": LABEL}


def test_another_label_is_replaced_and_the_same_is_not_written(volume: Path) -> None:
    relabel(volume, label="another", field="config.mounts[0]", xattr=XATTR)
    os.setxattr(volume / "a/b/file", XATTR, LABEL.encode() + b"\0")
    before = (volume / "a/b/file").stat().st_ctime_ns

    relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert set(labels(volume).values()) == {LABEL, LABEL + "\0"}
    assert (volume / "a/b/file").stat().st_ctime_ns == before


def test_one_file_of_ours_gets_the_label(volume: Path) -> None:
    label_file(volume / "a/b/file", label=LABEL, xattr=XATTR)
    assert labels(volume) == {"a/b/file": LABEL}

    with pytest.raises(ShimError, match=rf"^label {volume}/a/fifo as {LABEL}: operation not permitted"):
        label_file(volume / "a/fifo", label=LABEL, xattr="user.label")


def test_a_file_system_without_labels_is_left_alone(tmp_path: Path) -> None:
    relabel(Path(f"/proc/{os.getpid()}/net"), label=LABEL, field="config.mounts[0]", xattr=XATTR)


def test_a_directory_on_the_way_that_became_a_link_leads_nowhere(volume: Path) -> None:
    """Whichever process may write above the source can swap it between the check of the path and the labels."""
    (volume.parent / "elsewhere/b").mkdir()
    (volume / "a").rename(volume / "former")
    (volume / "a").symlink_to(volume.parent / "elsewhere")

    with pytest.raises(FailedPrecondition, match=rf"selinux_relabel: label {volume}/a/b as .*: not a directory"):
        relabel(volume / "a/b", label=LABEL, field="config.mounts[0]", xattr=XATTR)

    assert labels(volume.parent) == {}


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "/home", "/var/lib", "/etc/passwd"])
def test_the_systems_own_directories_are_refused(path: str) -> None:
    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[3\]\.selinux_relabel: {path} is the system's own"):
        relabel(Path(path), label=LABEL, field="config.mounts[3]", xattr=XATTR)


def test_what_the_file_system_refuses_is_named(volume: Path) -> None:
    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[0\]\.selinux_relabel: label {volume} as "):
        relabel(volume, label=LABEL, field="config.mounts[0]", xattr="user.label")  # not for links


def test_directories_nested_without_end_are_refused(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEPTH", 2)
    relabel(volume / "a", label=LABEL, field="config.mounts[0]", xattr=XATTR)
    with pytest.raises(FailedPrecondition, match="more than 2 directories are within each other"):
        relabel(volume, label=LABEL, field="config.mounts[0]", xattr=XATTR)


def test_it_ends_with_the_request(volume: Path) -> None:
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
