"""Flags of cri-dockerd whose meaning is elsewhere here.

They are taken so that a unit file or an orchestrator written for cri-dockerd starts this server unchanged. A flag that
would change what a pod gets and cannot be honoured is refused; one that changes nothing is ignored with a warning.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shim.domain.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """One flag of cri-dockerd."""

    flag: str
    why: str
    """Where its meaning has gone; the warning, and the help."""
    only: frozenset[str] | None = None
    """The values that can be ignored; None for any."""
    switch: bool = False
    """Whether it may stand without a value, for `true`."""
    silent: frozenset[str] = frozenset()
    """Values that ask for what is done anyhow, and need no warning."""


ALIASES: Mapping[str, str] = {"--cri-dockerd-root-directory": "root_directory"}
"""Flags of cri-dockerd that set a field under another name."""

LEGACY = (
    Legacy(
        flag="--network-plugin",
        why="pods get their network by CNI alone",
        only=frozenset({"cni"}),
        silent=frozenset({"cni"}),
    ),
    Legacy(
        flag="--ipv6-dual-stack",
        why="every address that CNI gives is reported, of both families",
        switch=True,
        silent=frozenset({"true"}),
    ),
    Legacy(
        flag="--hairpin-mode",
        why="the CNI configuration decides it (hairpinMode of the bridge plugin)",
        silent=frozenset({"none"}),
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
    """Say what becomes of each flag in `given` (flag to value); InvalidArgument for one that cannot be ignored."""
    return [word for legacy in LEGACY if legacy.flag in given for word in _word(legacy, given[legacy.flag])]


def _word(legacy: Legacy, value: str) -> list[str]:
    if legacy.only is not None and value not in legacy.only:
        accepted = " or ".join(sorted(legacy.only))
        raise InvalidArgument(f"flag {legacy.flag} {value!r} is not {accepted}: {legacy.why}")
    return [] if value in legacy.silent else [f"flag {legacy.flag} is ignored: {legacy.why}"]
