"""Flags of cri-dockerd whose meaning is elsewhere here.

They are taken so that a unit file or an orchestrator written for cri-dockerd starts this server unchanged. What they
ask for is ignored with a warning, unless it is what is done anyhow.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """One flag of cri-dockerd."""

    flag: str
    why: str
    """Where its meaning has gone; the warning, and the help."""
    switch: bool = False
    """May stand without a value, which means `true`."""
    silent: frozenset[str] = frozenset()
    """Values that ask for what is done anyhow, or that have no effect there either, and need no warning."""


ALIASES: Mapping[str, str] = {"--cri-dockerd-root-directory": "root_directory"}
"""Flags of cri-dockerd that set a field under another name."""

LEGACY = (
    Legacy(
        flag="--ipv6-dual-stack",
        why="every address that CNI gives is reported, of both families",
        switch=True,
        silent=frozenset({"1", "t", "T", "TRUE", "true", "True"}),  # as Go reads a switch
    ),
    Legacy(
        flag="--hairpin-mode",
        why="the CNI configuration decides it (hairpinMode of the bridge plugin)",
        silent=frozenset({"none", "hairpin-veth", "promiscuous-bridge"}),  # with CNI they are ignored there, too
    ),
    Legacy(
        flag="--network-plugin-mtu",
        why="the CNI configuration decides the MTU",
        silent=frozenset({"0"}),
    ),
    Legacy(
        flag="--runtime-cgroups",
        why="the unit of the Docker daemon decides its cgroup (Slice=)",
        silent=frozenset({""}),
    ),
)


def warnings(given: Mapping[str, str]) -> list[str]:
    """Return a warning for each flag in `given` (flag to value) that is ignored."""
    return [
        f"flag {legacy.flag} is ignored: {legacy.why}"
        for legacy in LEGACY
        if legacy.flag in given and given[legacy.flag] not in legacy.silent
    ]
