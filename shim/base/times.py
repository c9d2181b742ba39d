"""Parses Docker's times into nanoseconds since the epoch."""

import calendar
import re

SECOND = 1_000_000_000
"""Nanoseconds."""

NEVER = 0
"""The CRI's value for an event that has not happened."""

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)


def ns_from_rfc3339(text: str) -> int:
    """Parse RFC 3339 such as `2024-05-01T10:00:00.123456789+02:00`; digits after the ninth of a fraction are ignored.

    Return NEVER for Go's zero time (year 1), which Docker writes for "never", and for text that is not a time. It uses
    integers only: nanoseconds since the epoch need 61 bits, and a float has 53.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        return NEVER
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if year <= 1 or not 1 <= month <= 12:
        return NEVER
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    if sign:
        offset = int(offset_hours) * 3600 + int(offset_minutes) * 60
        seconds += offset if sign == "-" else -offset
    return seconds * SECOND + int((fraction or "").ljust(9, "0")[:9])
