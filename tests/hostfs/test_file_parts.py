import os
import subprocess
import sys
from pathlib import Path

import pytest

from shim.hostfs.file_parts import PART, read_part, read_parts
from shim.hostfs.packets import MAX_PACKET, packed


def test_part_fits_into_a_message(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(os.urandom(2 * PART + 3))

    parts = [read_part(path, offset=offset) for offset in (0, PART, 2 * PART, 3 * PART)]

    assert [len(part.content) for part in parts] == [PART, PART, 3, 0]
    assert b"".join(part.content for part in parts) == path.read_bytes()
    assert len(packed(1, (parts[0], None))) < MAX_PACKET


def test_changed_file_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b"1")
    before = read_part(path, offset=0).version
    assert read_part(path, offset=0).version == before
    path.write_bytes(b"12")
    assert read_part(path, offset=0).version != before


def test_file_within_the_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PART))
    assert read_parts(path, most=PART, call=lambda function: function()) == bytes(PART)
    with pytest.raises(OSError, match=f"more than {PART - 1} bytes"):
        read_parts(path, most=PART - 1, call=lambda function: function())


def test_helper_process_imports_little() -> None:
    code = "import sys, shim.hostfs.file_parts; print('google.protobuf' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"
