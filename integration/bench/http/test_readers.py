"""Both readers of the benchmark read the same content."""

import pytest

from integration.bench.http import responses
from integration.bench.http.readers import H11Reader, OwnReader
from integration.bench.http.responses import Exchange

EXCHANGES = [
    responses.version(),
    responses.inspect(),
    responses.containers(),
    responses.start(),
    *responses.exec_calls(),
    responses.events(),
]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: f"{exchange.method} {exchange.target[:60]}")
def test_both_readers_read_the_same_content_twice(exchange: Exchange) -> None:
    own, h11 = OwnReader(), H11Reader()
    for _ in range(2):
        content = b"".join(own.pieces(exchange))
        assert content == b"".join(h11.pieces(exchange))
        assert (len(content) > 0) == (b"204" not in exchange.arriving[0][:16])
