from pathlib import Path

import pytest

from shim.checkpoint.root import ensure_root_directory, locked_root_directory
from shim.domain.errors import FailedPrecondition, ShimError
from tests.facts import mode_of


def directory_with(path: Path, *names: str, mode: int) -> Path:
    path.mkdir()
    for name in names:
        (path / name).touch()
    path.chmod(mode)
    return path


def test_new_directory_is_private(tmp_path: Path) -> None:
    ensure_root_directory(tmp_path / "a/state")

    assert mode_of(tmp_path / "a/state") == 0o700


def test_leftovers_of_container_checkpoints_are_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpointing/0123/images").mkdir(parents=True)
    with locked_root_directory(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("lock", "sandboxes", "limits", "pod-cidr", "engine.json", "resolv-conf"),
        ("logs.lock", "sandboxes"),
        (".pod-cidr.0123abcd.tmp", ".engine.json.0123abcd.tmp"),
        ("sandbox",),
        ("lost+found",),
    ],
    ids=["empty", "server", "earlier server", "crash", "cri-dockerd", "file system"],
)
def test_own_directory_is_made_private(tmp_path: Path, names: tuple[str, ...]) -> None:
    own = directory_with(tmp_path / "state", *names, mode=0o755)

    ensure_root_directory(own)

    assert mode_of(own) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o1777])
def test_foreign_directory_is_refused_and_unchanged(tmp_path: Path, mode: int) -> None:
    shared = directory_with(tmp_path / "shared", "sandboxes", *"dabc", mode=mode)

    with pytest.raises(FailedPrecondition) as caught:
        ensure_root_directory(shared)

    assert str(caught.value) == (
        f"root_directory {shared} is not the server's own: it is open to other users and holds a, b, c, ...; name a "
        f"new or empty directory, or make this one private: chmod 0700 {shared}"
    )
    assert mode_of(shared) == mode


def test_private_directory_may_contain_other_files(tmp_path: Path) -> None:
    ensure_root_directory(directory_with(tmp_path / "state", "key.pem", mode=0o700))


def test_non_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ShimError, match=f"create the directory {tmp_path / 'file'}: file exists"):
        ensure_root_directory(tmp_path / "file")
