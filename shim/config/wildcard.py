"""Patterns in settings that name images and annotations: `*` matches any text, nothing else is special."""

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def expression_from_wildcard(text: str) -> re.Pattern[str]:
    """Compile a pattern for `fullmatch`.

    Not `fnmatch`, which would take an IPv6 address's brackets for a character class.
    """
    return re.compile(".*".join(re.escape(part) for part in text.split("*")))
