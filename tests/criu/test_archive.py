import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from shim.criu.archive import ARCHIVE_LIMIT, LOG_LIMIT, Budget, Refused, TooLarge, Writer


def layer(upper: Path) -> dict[str, tarfile.TarInfo]:
    """Write the layer of a directory, and return its members."""
    file = io.BytesIO()
    writer = Writer(file, budget=Budget(), check=lambda: None)
    writer.add_layer(upper)
    writer.close()
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return {member.name: member for member in archive}


def test_files_links_and_directories_are_in_the_layer(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o750)
    (tmp_path / "d/file").write_text("content")
    (tmp_path / "d/file").chmod(0o4711)
    (tmp_path / "d/link").symlink_to("../nowhere")
    (tmp_path / "d/other").hardlink_to(tmp_path / "d/file")
    os.mkfifo(tmp_path / "fifo")
    found = layer(tmp_path)
    assert list(found) == ["d", "fifo", "d/file", "d/link", "d/other"]
    assert found["d"].mode == 0o750
    assert (found["d/file"].mode, found["d/file"].size) == (0o4711, 7)
    assert found["d/link"].linkname == "../nowhere"
    assert (found["d/other"].islnk(), found["d/other"].linkname) == (True, "d/file")
    assert found["fifo"].isfifo()


def test_directories_deeper_than_pythons_stack_are_in_the_layer(tmp_path: Path) -> None:
    path = tmp_path
    try:
        for _ in range(1050):
            path /= "d"
            path.mkdir()
        assert len(layer(tmp_path)) == 1050
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # shutil.rmtree fails at this depth


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_a_removed_file_becomes_a_whiteout(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mknod(tmp_path / "d/gone", 0o20000, os.makedev(0, 0))
    assert [*layer(tmp_path)] == ["d", "d/.wh.gone"]


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_a_directory_that_replaces_the_images_is_opaque(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.setxattr(tmp_path / "d", "trusted.overlay.opaque", b"y")
    found = layer(tmp_path)
    assert set(found) == {"d", "d/.wh..wh..opq"}
    assert not any("overlay" in key for key in found["d"].pax_headers)


@pytest.mark.parametrize("name", [".wh...", ".wh.file", ".wh..wh..opq"])
def test_a_file_with_the_name_of_a_whiteout_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(Refused, match="its name would mark a file as removed"):
        layer(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
@pytest.mark.parametrize("attribute", [b"user.\xff", b"user.a=b"])
def test_an_attribute_that_no_archive_can_have_is_refused(tmp_path: Path, attribute: bytes) -> None:
    (tmp_path / "file").touch()
    os.setxattr(tmp_path / "file", attribute, b"v")
    with pytest.raises(Refused, match="of /file"):
        layer(tmp_path)


def test_a_link_is_kept_to_the_letter(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a//b/./c")
    assert layer(tmp_path)["link"].linkname == "a//b/./c"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_extended_attributes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.setxattr(tmp_path / "file", "trusted.own", b"\xff\x00value")
    value = layer(tmp_path)["file"].pax_headers["SCHILY.xattr.trusted.own"]
    assert value.encode(errors="surrogateescape") == b"\xff\x00value"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
@pytest.mark.parametrize("attribute", ["redirect", "metacopy"])
def test_a_file_whose_data_is_in_another_layer_is_refused(tmp_path: Path, attribute: str) -> None:
    (tmp_path / "moved").mkdir()
    os.setxattr(tmp_path / "moved", f"trusted.overlay.{attribute}", b"/from")
    with pytest.raises(Refused, match=f"/moved in another layer .*{attribute}"):
        layer(tmp_path)


def test_a_check_can_stop_the_archive_in_the_middle_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    checks = iter([None] * 5)

    def check() -> None:
        if next(checks, "end") == "end":
            raise Refused("given up")

    with pytest.raises(Refused, match="given up"):
        Writer(io.BytesIO(), budget=Budget(), check=check).add_layer(tmp_path)


def test_an_archive_beyond_the_bound_is_refused() -> None:
    assert ARCHIVE_LIMIT == 64 << 30
    with pytest.raises(TooLarge, match="more than 68719476736 bytes"):
        Budget().take((64 << 30) + 1)


def test_a_file_beyond_the_bound_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    file = io.BytesIO()
    with pytest.raises(TooLarge):
        Writer(file, budget=Budget(limit=5000), check=lambda: None).add_layer(tmp_path)
    assert file.getvalue() == b""


def test_the_last_whole_lines_of_a_long_log_are_in_the_archive(tmp_path: Path) -> None:
    line = b"0123456789 abcde\n"
    (tmp_path / "log").write_bytes(line * ((16 << 20) // len(line) + 1000))
    file = io.BytesIO()
    writer = Writer(file, budget=Budget(), check=lambda: None)
    writer.add_end("container.log", tmp_path / "log", limit=LOG_LIMIT)
    writer.close()
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        content = archive.extractfile("container.log").read()  # type: ignore[union-attr] # the member is a file
    assert (16 << 20) - len(line) <= len(content) <= 16 << 20
    assert content.startswith(line)


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    writer = Writer(io.BytesIO(), budget=Budget(), check=lambda: None)
    with pytest.raises(OSError, match="symbolic links"):
        writer.add_end("container.log", tmp_path / "log", limit=LOG_LIMIT)
