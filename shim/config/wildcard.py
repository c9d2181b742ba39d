"""Patterns of the settings that name images and annotations: `*` stands for any text, nothing else is special."""

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def expression_from_wildcard(text: str) -> re.Pattern[str]:
    """Compile a pattern for `fullmatch`; `fnmatch` would take the brackets of an IPv6 address for a choice."""
    return re.compile(".*".join(re.escape(part) for part in text.split("*")))
