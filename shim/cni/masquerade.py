"""Removal of leftover masquerading rules.

The plugins `bridge` and `ptp` find their rules by the addresses of the pod's interface. If the interface is gone, for
example because a plugin was killed in its first DEL, a repeated DEL succeeds and leaves the rules behind. The comment
of each rule names the container.
"""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from shim.base.spawn import run_bounded
from shim.cni.plugin import JsonObject
from shim.domain.errors import FailedPrecondition, ShimError, reason_of

PROGRAMS = ("iptables", "ip6tables")
TIMEOUT_SECONDS = 30.0
"""Limit for a call, which may wait for the lock of iptables."""

_ID = re.compile(r"[0-9a-f]{64}\Z")

log = structlog.get_logger(__name__)


def masquerades(conflist: JsonObject) -> bool:
    """Return whether a plugin of the list is configured to masquerade."""
    return any(plugin.get("ipMasq") is True for plugin in conflist["plugins"])


def remove_masquerade(container_id: str) -> None:
    """Remove the NAT rules whose comment names this container, and the plugins' chains behind them.

    The rules or iptables itself may be missing. Raise ShimError if a rule cannot be removed.
    """
    if not _ID.match(container_id):
        return
    for name in PROGRAMS:
        if (program := shutil.which(name)) is not None:
            _remove(Path(program), container_id)


def _remove(program: Path, container_id: str) -> None:
    try:
        rules = [shlex.split(line) for line in _run(program, "-S").split("\n") if f'id: \\"{container_id}\\"' in line]
    except ShimError as error:  # a kernel without the NAT table has no NAT rules
        log.debug("failed to read NAT rules", program=str(program), error=error)
        return
    jumps = [rule for rule in rules if rule[:2] == ["-A", "POSTROUTING"]]
    for rule in jumps:
        _run(program, "-D", *rule[1:])
    chains = {rule[1] for rule in rules if rule[0] == "-A" and re.match(r"CNI-[0-9a-f]{24}\Z", rule[1])}
    for chain in chains:
        _run(program, "-F", chain)
        _run(program, "-X", chain)
    if rules:
        log.info("removed masquerading rules left by a plugin", sandbox=container_id, program=program.name)


def _run(program: Path, *arguments: str) -> str:
    what = f"run {program.name} -t nat {' '.join(arguments)}"
    try:
        outcome = run_bounded(
            program,
            arguments=_arguments(arguments),
            environment=dict(os.environ),
            stdin=b"",
            timeout=TIMEOUT_SECONDS,
            what=what,
        )
    except OSError as error:
        raise FailedPrecondition(f"{what}: {reason_of(error)}") from error
    if outcome.returncode:
        raise ShimError(f"{what}: {outcome.stderr.decode(errors='replace').strip()[:200]}")
    return outcome.stdout.decode(errors="replace")


def _arguments(arguments: Sequence[str]) -> list[str]:
    return ["--wait", "-t", "nat", *arguments]
