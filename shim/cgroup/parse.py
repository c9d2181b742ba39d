"""The formats of control group files, text to values. Pure, and no error: what cannot be read is None or left out.

A group can vanish while its files are read, and a file of the kernel comes in one piece or not at all, but a copy of
one may be cut short: the lines that are whole count.
"""

import functools
import itertools
import re
from collections.abc import Iterable

from shim.base.proc import lines
from shim.cgroup.figures import NO_LIMIT, Io, Pressure, Psi

UNLIMITED = 1 << 62
"""From here on a limit of version 1 is none: the kernel writes the largest multiple of a page."""

_MICROSECOND = 1000
_MAX_NUMBERS = 1 << 16
"""More CPUs, and memory nodes, than a kernel can be built for."""
_AVERAGE = rb"(\d+\.\d+)"
_PSI_LINE = re.compile(
    rb"^(some|full) avg10=%b avg60=%b avg300=%b total=(\d{1,20})$" % (_AVERAGE, _AVERAGE, _AVERAGE), re.MULTILINE
)
_KNOWN_PRESSURES = 1024
"""Texts of pressure files whose values are kept: most groups wait for nothing, so that theirs does not change."""
_LARGEST = (1 << 64) - 1
"""What the messages of the CRI can hold, and the kernel counts in."""


def number(text: bytes | None) -> int | None:
    """Read a file, or a word, that is one count. None for `max`, for what is no number, and for nothing."""
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        return None
    return value if 0 <= value <= _LARGEST else None if value < 0 else _LARGEST


def limit(text: bytes | None) -> int | None:
    """Read a limit; None when there is none, in either version's spelling."""
    value = number(text)
    return None if value is None or value >= UNLIMITED else value


def parse_limit(text: bytes | None) -> int | None:
    """Read a limit, in either version's spelling. Return NO_LIMIT for none, None for one that cannot be read."""
    word = (text or b"").strip()
    if word in {b"max", b"-1"}:
        return NO_LIMIT
    value = number(word)
    return NO_LIMIT if value is not None and value >= UNLIMITED else value


def line(text: bytes | None) -> str | None:
    """Read a file that is one text, which may be empty."""
    return None if text is None else text.decode(errors="replace").strip()


def numbers(text: str) -> frozenset[int]:
    """Read a list of CPUs or memory nodes, such as `0-3,8`; what is none counts as empty."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal() and int(last or first) < _MAX_NUMBERS:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def flat(text: bytes | None) -> dict[bytes, bytes]:
    """Read a file of `key value` lines; values stay text, since few of many are wanted."""
    whole, _, _ = (text or b"").rpartition(b"\n")
    words = whole.split()
    return dict(zip(words[::2], words[1::2], strict=False))


def microseconds(text: bytes | None) -> int | None:
    """Read a time in microseconds as nanoseconds."""
    value = number(text)
    return None if value is None else min(value * _MICROSECOND, _LARGEST)


@functools.lru_cache(_KNOWN_PRESSURES)
def psi(text: bytes | None) -> Psi | None:
    """Read a pressure file; None without its `some` line, such as where the kernel was started without PSI."""
    found = {line[0]: _pressure(line) for line in _PSI_LINE.findall(text or b"")}
    some = found.get(b"some")
    return None if some is None else Psi(some, found.get(b"full"))


def _pressure(line: tuple[bytes, ...]) -> Pressure:
    _, avg10, avg60, avg300, total = line
    return Pressure(min(int(total) * _MICROSECOND, _LARGEST), float(avg10), float(avg60), float(avg300))


def io_stat(text: bytes | None) -> list[Io]:
    """Read `io.stat` of version 2: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`."""
    found = []
    for line in lines(text or b""):
        device, *pairs = line.split() or [b""]
        values = dict(pair.partition(b"=")[::2] for pair in pairs)
        counts = [number(values.get(key)) for key in (b"rbytes", b"wbytes", b"rios", b"wios")]
        numbers = _device(device)
        # A device without figures is listed by its number alone.
        if numbers is not None and None not in counts:
            found.append(_io(numbers, [count or 0 for count in counts]))
    return found


def blkio(*, byte_lines: bytes | None, operation_lines: bytes | None) -> list[Io]:
    """Read `blkio.throttle.io_service_bytes` and `io_serviced` of version 1: `8:0 Read 4096`."""
    counts: dict[tuple[int, int], list[int]] = {}
    for table, offset in ((byte_lines, 0), (operation_lines, 2)):
        for device, operation, value in _triples(lines(table or b"")):
            found = counts.setdefault(device, [0, 0, 0, 0])
            if operation in (b"Read", b"Write"):
                found[offset + (operation == b"Write")] = value
    return [_io(device, values) for device, values in counts.items()]


def fullest(*counted: Iterable[Io]) -> list[Io]:
    """Return for each device the counter that has seen the most: each begins when it is set up for the device."""
    found: dict[tuple[int, int], Io] = {}
    for io in itertools.chain(*counted):
        known = found.setdefault((io.major, io.minor), io)
        if io.read_bytes + io.write_bytes > known.read_bytes + known.write_bytes:
            found[io.major, io.minor] = io
    return list(found.values())


def process_ids(text: bytes | None) -> list[int]:
    """Read `cgroup.procs`."""
    return [int(word) for word in (text or b"").split() if word.isdigit()]


def _triples(table: Iterable[bytes]) -> Iterable[tuple[tuple[int, int], bytes, int]]:
    for line in table:
        words = line.split()
        # The last line is `Total` and a sum.
        if len(words) == 3 and (device := _device(words[0])) and (value := number(words[2])) is not None:
            yield device, words[1], value


def _device(text: bytes) -> tuple[int, int] | None:
    major, _, minor = text.partition(b":")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _io(device: tuple[int, int], counts: list[int]) -> Io:
    read_bytes, write_bytes, reads, writes = counts
    major, minor = device
    return Io(major=major, minor=minor, read_bytes=read_bytes, write_bytes=write_bytes, reads=reads, writes=writes)
