"""The initramfs archive, read back in the kernel's documented format."""

import io
from collections.abc import Iterator

from integration.vm.archive import Archive

MAGIC = b"070701"


def entries(archive: bytes) -> Iterator[tuple[str, list[int], bytes]]:
    """Yield name, fields and content of each entry, in the layout of the kernel's documentation."""
    at = 0
    while at < len(archive):
        assert archive[at : at + 6] == MAGIC
        fields = [int(archive[at + 6 + 8 * number : at + 14 + 8 * number], 16) for number in range(13)]
        begin = at + 110
        name = archive[begin : begin + fields[11] - 1].decode()
        assert archive[begin + fields[11] - 1] == 0
        begin = _aligned(begin + fields[11])
        yield name, fields, archive[begin : begin + fields[6]]
        at = _aligned(begin + fields[6])


def _aligned(position: int) -> int:
    return (position + 3) & ~3


def test_an_archive_has_all_kinds_of_entries() -> None:
    file = io.BytesIO()
    archive = Archive(file)
    archive.add_directory("dev")
    archive.add_device("dev/console", major=5, minor=1)
    archive.add_file("init", b"#!/bin/sh\n")
    archive.add_link("sh", "init")
    archive.end()

    found = list(entries(file.getvalue()))

    assert [name for name, _, _ in found] == ["dev", "dev/console", "init", "sh", "TRAILER!!!"]
    assert [fields[1] for _, fields, _ in found] == [0o40755, 0o20600, 0o100755, 0o120777, 0]
    assert [fields[9:11] for _, fields, _ in found][1] == [5, 1]
    assert [content for _, _, content in found] == [b"", b"", b"#!/bin/sh\n", b"init", b""]
    assert len({fields[0] for _, fields, _ in found}) == len(found)
    assert len(file.getvalue()) % 4 == 0
