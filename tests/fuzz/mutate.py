"""Random mutations of valid inputs, reproducible by a seed."""

import random
from collections.abc import Sequence

_NUMBERS = (b"0", b"-1", b"1e999", b"2147483648", b"9223372036854775808", b"18446744073709551616", b"9" * 400)
_BYTES = (b"\0", b"\xff", b"\x80", b"\n", b"\r\n", b"\\", b'"', b"{", b"[", b":", b",", b" ", b"\xed\xa0\x80")


class Mutator:
    """Makes inputs for a target."""

    def __init__(self, corpus: Sequence[bytes], *, words: Sequence[bytes], longest: int, seed: str) -> None:
        self._random = random.Random(seed)
        self._corpus = list(corpus)
        self._words = [*words, *_NUMBERS, *_BYTES]
        self._longest = longest

    def next(self) -> bytes:
        """Return another input."""
        chance = self._random
        data = chance.choice(self._corpus)
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5, 9, 30))):
            data = self._changed(data)[: self._longest]
        return data

    def keep(self, data: bytes) -> None:
        """Add an input to the corpus."""
        self._corpus.append(data)
        if len(self._corpus) > 500:
            del self._corpus[self._random.randrange(len(self._corpus))]

    def _changed(self, data: bytes) -> bytes:
        chance = self._random
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 4, 8, 64, 1024)))
        match chance.randrange(9):
            case 0:
                return data[:at] + data[end:]
            case 1:
                return data[:at] + data[at:end] * chance.choice((2, 3, 100)) + data[end:]
            case 2:
                return data[:at] + chance.randbytes(chance.choice((1, 2, 4, 16))) + data[end:]
            case 3 | 4:
                return data[:at] + chance.choice(self._words) + data[at:]
            case 5:
                return data[:at] + chance.choice(self._words) + data[end:]
            case 6:
                other = chance.choice(self._corpus)
                return data[:at] + other[chance.randrange(len(other) + 1) :]
            case 7 if at < len(data):
                return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case _:
                return data[:at]
