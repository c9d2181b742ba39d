import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shim.logs import lines
from shim.logs.lines import end_of_lines, lines_backwards


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=30), st.binary(max_size=5))
def test_all_whole_lines_come_once_and_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[bytes], torn: bytes
) -> None:
    monkeypatch.setattr(lines, "BLOCK", 16)  # as much as the longest line, and so that there are many blocks
    content = b"".join(line + b"\n" for line in whole)
    path = tmp_path / "file"
    path.write_bytes(content + torn.replace(b"\n", b""))
    fd = os.open(path, os.O_RDONLY)
    try:
        groups = list(lines_backwards(fd))
        assert end_of_lines(fd) == len(content)
    finally:
        os.close(fd)

    assert b"".join(group for _, group in reversed(groups)) == content
    assert all(content[offset:].startswith(group) and group.endswith(b"\n") for offset, group in groups)
