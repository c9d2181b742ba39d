"""A layer is applied to a root as overlayfs had it, and nothing outside of the root is touched."""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shim.criu.archive import Budget, Writer
from shim.oci_runtime.diff import apply, check_entry
from shim.oci_runtime.order import OrderError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make the root of an image, and next to it a file that must not be touched."""
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/passwd").write_text("image")
    (tmp_path / "root/lib").mkdir()
    (tmp_path / "root/lib/a").write_text("image")
    (tmp_path / "root/out").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("untouched")
    return tmp_path / "root"


def written(path: Path, *entries: tuple[str, dict[str, Any]]) -> str:
    """Write a layer; `content` is the content of a file, other fields belong to the header."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in entries:
            entry = tarfile.TarInfo(name)
            content = fields.pop("content", b"")
            entry.size = len(content)
            for field, value in fields.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(content))
    return str(path)


def test_files_directories_and_links_are_made(root: Path, tmp_path: Path) -> None:
    layer = written(
        tmp_path / "layer",
        ("d", {"type": tarfile.DIRTYPE, "mode": 0o1777, "uid": 5, "gid": 6, "mtime": 1000}),
        ("d/f", {"content": b"new", "mode": 0o4755, "uid": 7, "gid": 8, "mtime": 2000}),
        ("d/same", {"type": tarfile.LNKTYPE, "linkname": "d/f"}),
        ("d/s", {"type": tarfile.SYMTYPE, "linkname": "/etc/../../x", "uid": 9}),
        ("d/p", {"type": tarfile.FIFOTYPE, "mode": 0o620}),
        ("etc/passwd", {"content": b"changed", "pax_headers": {"SCHILY.xattr.user.note": "n"}}),
    )
    for _ in range(2):  # to apply it again changes nothing
        apply(layer, str(root))
        found = (root / "d").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime) == (0o1777, 5, 6, 1000)
        file = (root / "d/f").stat()
        assert (stat.S_IMODE(file.st_mode), file.st_uid, file.st_gid, file.st_mtime) == (0o4755, 7, 8, 2000)
        assert file.st_ino == (root / "d/same").stat().st_ino
        assert ((root / "d/s").readlink(), (root / "d/s").lstat().st_uid) == (Path("/etc/../../x"), 9)
        assert stat.S_ISFIFO((root / "d/p").stat().st_mode)
        assert (root / "d/f").read_bytes() == b"new"
        assert (root / "etc/passwd").read_text() == "changed"
        assert os.getxattr(root / "etc/passwd", "user.note") == b"n"


def test_whiteouts_remove_and_opaque_directories_begin_empty(root: Path, tmp_path: Path) -> None:
    layer = written(
        tmp_path / "layer",
        (".wh.out", {}),
        ("etc/.wh.passwd", {}),
        ("etc/.wh.never", {}),
        ("lib/.wh..wh..opq", {}),
        ("lib", {"type": tarfile.DIRTYPE, "mode": 0o755}),
        ("lib/b", {"content": b"b"}),
    )
    apply(layer, str(root))
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["etc", "lib", "lib/b"]
    assert (tmp_path / "outside/file").read_text() == "untouched"


def test_another_kind_of_file_takes_the_place(root: Path, tmp_path: Path) -> None:
    layer = written(
        tmp_path / "layer",
        ("out", {"type": tarfile.DIRTYPE, "mode": 0o755}),
        ("out/file", {"content": b"inside"}),
        ("etc", {"content": b"a file now"}),
    )
    apply(layer, str(root))
    assert (root / "out/file").read_bytes() == b"inside"
    assert not (root / "out").is_symlink()
    assert (root / "etc").read_bytes() == b"a file now"
    assert (tmp_path / "outside/file").read_text() == "untouched"


@pytest.mark.parametrize(
    "entry",
    [
        ("out/file", {"content": b"overwritten"}),
        ("out/.wh.file", {}),
        ("out/.wh..wh..opq", {}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "out/file"}),
    ],
)
def test_no_link_of_the_image_leads_out(root: Path, tmp_path: Path, entry: tuple[str, dict[str, Any]]) -> None:
    with pytest.raises(OSError, match="out"):
        apply(written(tmp_path / "layer", entry), str(root))
    assert (tmp_path / "outside/file").read_text() == "untouched"
    assert not (root / "hard").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "", ".", "x" * 5000])
def test_paths_that_lead_out_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(OrderError, match="not a path inside of a layer"):
        apply(written(tmp_path / "layer", (name, {})), str(root))


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "lib/.wh...", ".wh..wh.plnk"])
def test_whiteouts_that_remove_no_file_of_their_directory_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    """A container may have a file of such a name: `.wh...` would remove everything next to its root."""
    with pytest.raises(OrderError, match="not the name of a whiteout"):
        apply(written(tmp_path / "layer", (name, {})), str(root))
    assert (root / "lib/a").exists()
    assert (tmp_path / "outside/file").read_text() == "untouched"


def test_sparse_files_are_refused(root: Path, tmp_path: Path) -> None:
    """A layer of some KiB could fill the disk."""
    headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "x",
        "GNU.sparse.realsize": str(1 << 50),
    }
    layer = written(tmp_path / "layer", ("x", {"content": b"0\n" + bytes(510), "pax_headers": headers}))
    with pytest.raises(OrderError, match="sparse"):
        apply(layer, str(root))


@pytest.mark.parametrize("fields", [{"uid": 2**32 - 1}, {"gid": -1}, {"mtime": float("inf")}, {"mtime": float("nan")}])
def test_owners_and_times_that_no_file_has_are_refused(fields: dict[str, Any]) -> None:
    entry = tarfile.TarInfo("x")
    for field, value in fields.items():
        setattr(entry, field, value)
    with pytest.raises(OrderError, match="has an owner or a time that no file has"):
        check_entry(entry)


def layer_of(upper: Path, path: Path) -> str:
    """Write the layer of an upper directory."""
    with path.open("wb") as file:
        writer = Writer(file, budget=Budget(), check=_never)
        writer.add_layer(upper)
        writer.close()
    return str(path)


@pytest.mark.parametrize("before", ["nothing", "a file", "a link"])
def test_an_opaque_directory_is_new_or_takes_the_place_of_a_file(root: Path, tmp_path: Path, before: str) -> None:
    """A directory that was renamed in the container is opaque."""
    if before == "a file":
        (root / "data").write_text("image")
    elif before == "a link":
        (root / "data").symlink_to(tmp_path / "outside")
    upper = tmp_path / "upper"
    (upper / "data").mkdir(parents=True)
    os.setxattr(upper / "data", "trusted.overlay.opaque", b"y")
    (upper / "data/x").write_text("new")

    apply(layer_of(upper, tmp_path / "layer"), str(root))

    assert (root / "data/x").read_text() == "new"
    assert not (root / "data").is_symlink()
    assert (tmp_path / "outside/file").read_text() == "untouched"


def test_a_layer_of_an_upper_directory_is_applied_whole(root: Path, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "lib").mkdir(parents=True)
    os.setxattr(upper / "lib", "trusted.overlay.opaque", b"y")
    (upper / "lib/new").write_text("new")
    (upper / "etc").mkdir()
    os.mknod(upper / "etc/passwd", stat.S_IFCHR, os.makedev(0, 0))
    apply(layer_of(upper, tmp_path / "layer"), str(root))
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["etc", "lib", "lib/new", "out"]


_never: Callable[[], None] = lambda: None  # noqa: E731 - a check that never ends the work
