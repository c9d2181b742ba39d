"""Matching of keyring entries and repositories. Pure.

The rules are the kubelet's (Kubernetes documentation, "Interpretation of config.json"): the ports must be equal, `*`
matches any part of a single label of the host, and the entry's path must be a prefix of the repository's.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from shim.domain.references import DEFAULT_DOMAIN, HUB_HOST

T = TypeVar("T")

_API_VERSIONS = ("v1", "v2")


def key_from_location(location: str) -> str:
    """Reduce an entry's name to `host[:port][/path]`: `https://index.docker.io/v1/` becomes `index.docker.io`.

    Scheme, user, and a leading registry API version in the path are not part of the match.
    """
    _, scheme, rest = location.partition("://")
    host, _, path = re.split("[?#]", rest if scheme else location, maxsplit=1)[0].partition("/")
    first, _, others = path.partition("/")
    if first in _API_VERSIONS:
        path = others
    host = host.rpartition("@")[2].lower()
    return f"{host}/{path}" if path else host


def matches(key: str, repository: str) -> bool:
    """Whether the entry `key` (of `key_from_location`) matches `repository` (`host[:port]/path`)."""
    pattern, _, prefix = key.partition("/")
    target, _, path = repository.partition("/")
    pattern_host, pattern_port = _split_port(pattern.lower())
    host, port = _split_port(target.lower())
    return pattern_port == port and path.startswith(prefix) and bool(_host_pattern(pattern_host).fullmatch(host))


def fitting(entries: Iterable[tuple[str, T]], repository: str) -> list[tuple[str, T]]:
    """Return the entries (key, value) that match a repository, in the order to try them.

    The order is the kubelet's, reverse by key: a longer path before a shorter path, a host before a `*`. Entries with
    equal keys keep their order.
    """
    ordered = sorted(entries, key=lambda entry: entry[0], reverse=True)
    found = [entry for entry in ordered if matches(entry[0], repository)]
    if not found and repository.startswith(f"{DEFAULT_DOMAIN}/"):
        found = [entry for entry in ordered if entry[0] == HUB_HOST]
    return found


def _split_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    # The colons of an IPv6 address are inside its brackets.
    return (name, port) if colon and not port.endswith("]") else (host, "")


@lru_cache(maxsize=1024)
def _host_pattern(host: str) -> re.Pattern[str]:
    # Atomic groups: the first match of a part between two wildcards is as good as a later match, so no other is tried.
    first, *others = map(re.escape, host.split("*"))
    if not others:
        return re.compile(first)
    *middle, last = others
    return re.compile(first + "".join(f"(?>[^.]*?{part})" for part in middle) + "[^.]*" + last)
