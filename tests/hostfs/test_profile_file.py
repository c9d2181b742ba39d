import os
import subprocess
import sys
from pathlib import Path

import pytest

from shim.domain.errors import FailedPrecondition
from shim.hostfs.packets import MAX_PACKET, packed
from shim.hostfs.profile_file import PART, read_part


def test_part_fits_into_a_message(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(os.urandom(2 * PART + 3))

    parts = [read_part(path, offset=offset, field="f") for offset in (0, PART, 2 * PART, 3 * PART)]

    assert [len(part.content) for part in parts] == [PART, PART, 3, 0]
    assert b"".join(part.content for part in parts) == path.read_bytes()
    assert len(packed(1, (parts[0], None))) < MAX_PACKET


def test_changed_file_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(b"1")
    before = read_part(path, offset=0, field="f").version
    assert read_part(path, offset=0, field="f").version == before
    path.write_bytes(b"12")
    assert read_part(path, offset=0, field="f").version != before


def test_unreadable_profile_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=rf"f\.seccomp: seccomp profile {tmp_path}/x: no such file"):
        read_part(tmp_path / "x", offset=0, field="f.seccomp")


def test_helper_process_imports_little() -> None:
    code = "import sys, shim.hostfs.profile_file; print('google.protobuf' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"
