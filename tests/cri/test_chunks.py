import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.chunks import CHUNK, CHUNK_BYTES, chunks


def image(size: int = 1) -> pb.Image:
    return pb.Image(id="x" * size)


@pytest.mark.parametrize(
    ("count", "parts"), [(0, []), (1, [1]), (CHUNK, [CHUNK]), (2 * CHUNK + 1, [CHUNK, CHUNK, 1])], ids=str
)
def test_a_chunk_has_a_bounded_number_of_items(count: int, parts: list[int]) -> None:
    assert [len(part) for part in chunks([image()] * count)] == parts


def test_a_chunk_has_a_bounded_size() -> None:
    parts = list(chunks([image(CHUNK_BYTES // 3)] * 7))
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert all(sum(item.ByteSize() for item in part) <= CHUNK_BYTES for part in parts)


def test_a_larger_item_is_a_chunk_of_its_own() -> None:
    assert [len(part) for part in chunks([image(), image(2 * CHUNK_BYTES), image()])] == [1, 1, 1]
