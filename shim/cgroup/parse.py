"""Parses the files of control groups. Pure. Never raises: an unreadable value is None or left out.

A group can disappear while its files are read. The kernel returns a file whole or not at all, but a copy of a file may
be cut short, so only complete lines count.
"""

import functools
import itertools
import re
from collections.abc import Iterable

from shim.base.proc import lines
from shim.cgroup.figures import NO_LIMIT, Io, Pressure, Psi

UNLIMITED = 1 << 62
"""A version 1 limit from here on means no limit: the kernel writes the largest multiple of a page."""

_MICROSECOND = 1000
_MAX_NUMBERS = 1 << 16
"""More CPUs or memory nodes than a kernel can be built for."""
_AVERAGE = rb"(\d+\.\d+)"
_PSI_LINE = re.compile(
    rb"^(some|full) avg10=%b avg60=%b avg300=%b total=(\d{1,20})$" % (_AVERAGE, _AVERAGE, _AVERAGE), re.MULTILINE
)
_KNOWN_PRESSURES = 1024
"""Parsed pressure files in the cache: most groups never stall, so their files do not change."""
_LARGEST = (1 << 64) - 1
"""The highest count of the kernel and of the CRI's messages."""


def number(text: bytes | None) -> int | None:
    """Parse a count; None for `max`, an empty text, a negative number or any other text."""
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        return None
    return value if 0 <= value <= _LARGEST else None if value < 0 else _LARGEST


def limit(text: bytes | None) -> int | None:
    """Parse a limit of either version; None for no limit."""
    value = number(text)
    return None if value is None or value >= UNLIMITED else value


def parse_limit(text: bytes | None) -> int | None:
    """Parse a limit of either version; NO_LIMIT for no limit, None if it is unreadable."""
    word = (text or b"").strip()
    if word in {b"max", b"-1"}:
        return NO_LIMIT
    value = number(word)
    return NO_LIMIT if value is not None and value >= UNLIMITED else value


def line(text: bytes | None) -> str | None:
    """Decode a file of one line, which may be empty."""
    return None if text is None else text.decode(errors="replace").strip()


def numbers(text: str) -> frozenset[int]:
    """Parse a list of CPUs or memory nodes, such as `0-3,8`; skip other parts."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal() and int(last or first) < _MAX_NUMBERS:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def flat(text: bytes | None) -> dict[bytes, bytes]:
    """Parse a file of `key value` lines; values stay bytes, since callers need few of them."""
    whole, _, _ = (text or b"").rpartition(b"\n")
    words = whole.split()
    return dict(zip(words[::2], words[1::2], strict=False))


def microseconds(text: bytes | None) -> int | None:
    """Parse a time in microseconds; return nanoseconds."""
    value = number(text)
    return None if value is None else min(value * _MICROSECOND, _LARGEST)


@functools.lru_cache(_KNOWN_PRESSURES)
def psi(text: bytes | None) -> Psi | None:
    """Parse a pressure file; None without a `some` line, as with a kernel that was started without PSI."""
    found = {line[0]: _pressure(line) for line in _PSI_LINE.findall(text or b"")}
    some = found.get(b"some")
    return None if some is None else Psi(some, found.get(b"full"))


def _pressure(line: tuple[bytes, ...]) -> Pressure:
    _, avg10, avg60, avg300, total = line
    return Pressure(min(int(total) * _MICROSECOND, _LARGEST), float(avg10), float(avg60), float(avg300))


def io_stat(text: bytes | None) -> list[Io]:
    """Parse `io.stat` of version 2: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`."""
    found = []
    for line in lines(text or b""):
        device, *pairs = line.split() or [b""]
        values = dict(pair.partition(b"=")[::2] for pair in pairs)
        counts = [number(values.get(key)) for key in (b"rbytes", b"wbytes", b"rios", b"wios")]
        numbers = _device(device)
        # The line of a device without figures holds only its number.
        if numbers is not None and None not in counts:
            found.append(_io(numbers, [count or 0 for count in counts]))
    return found


def blkio(*, byte_lines: bytes | None, operation_lines: bytes | None) -> list[Io]:
    """Parse `blkio.throttle.io_service_bytes` and `io_serviced` of version 1: `8:0 Read 4096`."""
    counts: dict[tuple[int, int], list[int]] = {}
    for table, offset in ((byte_lines, 0), (operation_lines, 2)):
        for device, operation, value in _triples(lines(table or b"")):
            found = counts.setdefault(device, [0, 0, 0, 0])
            if operation in (b"Read", b"Write"):
                found[offset + (operation == b"Write")] = value
    return [_io(device, values) for device, values in counts.items()]


def fullest(*counted: Iterable[Io]) -> list[Io]:
    """Return the highest counter of each device: the counters of a device begin at different times."""
    found: dict[tuple[int, int], Io] = {}
    for io in itertools.chain(*counted):
        known = found.setdefault((io.major, io.minor), io)
        if io.read_bytes + io.write_bytes > known.read_bytes + known.write_bytes:
            found[io.major, io.minor] = io
    return list(found.values())


def process_ids(text: bytes | None) -> list[int]:
    """Parse `cgroup.procs`."""
    return [int(word) for word in (text or b"").split() if word.isdigit()]


def _triples(table: Iterable[bytes]) -> Iterable[tuple[tuple[int, int], bytes, int]]:
    for line in table:
        words = line.split()
        # The last line holds `Total` and a sum.
        if len(words) == 3 and (device := _device(words[0])) and (value := number(words[2])) is not None:
            yield device, words[1], value


def _device(text: bytes) -> tuple[int, int] | None:
    major, _, minor = text.partition(b":")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _io(device: tuple[int, int], counts: list[int]) -> Io:
    read_bytes, write_bytes, reads, writes = counts
    major, minor = device
    return Io(major=major, minor=minor, read_bytes=read_bytes, write_bytes=write_bytes, reads=reads, writes=writes)
