"""Flags of cri-dockerd that this server accepts but ignores.

They are accepted so that a unit file or an orchestrator written for cri-dockerd starts this server unchanged. They are
ignored with a warning, unless they request the existing behaviour.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredFlag:
    """An ignored flag of cri-dockerd."""

    flag: str
    why: str
    """Where the setting is made instead; used in the warning and the help."""
    switch: bool = False
    """May stand without a value, which means `true`."""
    silent: frozenset[str] = frozenset()
    """Values that need no warning: they request the existing behaviour, or have no effect in cri-dockerd either."""


ALIASES: Mapping[str, str] = {"--cri-dockerd-root-directory": "root_directory"}
"""Flags of cri-dockerd that set a field with another name."""

IGNORED = (
    IgnoredFlag(
        flag="--ipv6-dual-stack",
        why="all addresses that CNI assigns are reported, of both families",
        switch=True,
        silent=frozenset({"1", "t", "T", "TRUE", "true", "True"}),  # as Go parses a boolean
    ),
    IgnoredFlag(
        flag="--hairpin-mode",
        why="the CNI configuration decides it (hairpinMode of the bridge plugin)",
        silent=frozenset({"none", "hairpin-veth", "promiscuous-bridge"}),  # cri-dockerd ignores them with CNI, too
    ),
    IgnoredFlag(
        flag="--network-plugin-mtu",
        why="the CNI configuration decides the MTU",
        silent=frozenset({"0"}),
    ),
    IgnoredFlag(
        flag="--runtime-cgroups",
        why="the unit of the Docker daemon decides its cgroup (Slice=)",
        silent=frozenset({""}),
    ),
)


def warnings(given: Mapping[str, str]) -> list[str]:
    """Return a warning for each ignored flag in `given` (flag to value)."""
    return [
        f"flag {entry.flag} is ignored: {entry.why}"
        for entry in IGNORED
        if entry.flag in given and given[entry.flag] not in entry.silent
    ]
