"""The changes of Docker and CNI plugins to a machine's forwarding, and how they are undone."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from integration.node.commands import run
from integration.node.engine import has_link, remove_link

_COMMANDS = ("iptables", "ip6tables")
_SWITCHES = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
_NETWORK = Path("/proc/sys/net")
_SECONDS = 30


class Rules(msgspec.Struct):
    """How a machine forwards packets."""

    switches: dict[str, str] = {}
    """Kernel settings that Docker and the plugins enable."""
    tables: dict[str, list[str]] = {}
    """Lines of iptables-save and ip6tables-save, without counters."""
    docker0: bool = False
    """Whether Docker's bridge exists."""


def rules_now() -> Rules:
    """Return the current rules."""
    return Rules(
        switches={switch: (_NETWORK / switch).read_text().strip() for switch in _SWITCHES},
        tables={command: _lines(command) for command in _COMMANDS},
        docker0=has_link("docker0"),
    )


def restore(before: Rules) -> None:
    """Remove new chains and rules of Docker and CNI plugins, and restore all settings.

    New rules of other programs stay.
    """
    for command in _COMMANDS:
        for words in list(undo_commands(before.tables[command], _lines(command))):
            run([command, "--wait", *words], timeout=_SECONDS)
    if not before.docker0:
        remove_link("docker0")
    for switch, value in before.switches.items():
        (_NETWORK / switch).write_text(value)


def _lines(command: str) -> list[str]:
    lines = run([f"{command}-save"], timeout=_SECONDS).splitlines()
    return [line.partition(" [")[0] for line in lines if line and not line.startswith("#")]


def undo_commands(before: list[str], now: list[str]) -> Iterator[list[str]]:
    """Yield the arguments of iptables that undo the changes: first rules, then chains and policies."""
    chains: list[list[str]] = []
    there, policies, table = set(_with_tables(before)), dict(_policies(before)), ""
    for line in now:
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            chain, policy = line[1:].split()
            if policy != "-" and policies.get((table, chain), "ACCEPT") != policy:
                chains.append(["-t", table, "-P", chain, policies.get((table, chain), "ACCEPT")])
            elif policy == "-" and (table, line) not in there and _is_theirs(line):
                yield ["-t", table, "-F", chain]
                chains.append(["-t", table, "-X", chain])
        elif line.startswith("-A") and (table, line) not in there and _is_theirs(line):
            words = shlex.split(line)
            if not _is_theirs(words[1]):  # rules in their chains go with the chain
                yield ["-t", table, "-D", *words[1:]]
    yield from chains


def _with_tables(lines: list[str]) -> Iterator[tuple[str, str]]:
    table = ""
    for line in lines:
        table = line[1:] if line.startswith("*") else table
        yield table, line


def _policies(lines: list[str]) -> Iterator[tuple[tuple[str, str], str]]:
    for table, line in _with_tables(lines):
        if line.startswith(":"):
            chain, policy = line[1:].split()
            yield (table, chain), policy


def _is_theirs(text: str) -> bool:
    return any(name in text for name in ("DOCKER", "CNI-", "docker0"))
