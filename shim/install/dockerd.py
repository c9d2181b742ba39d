"""The node's dockerd: its command line, and its validation of a daemon.json."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shim.base.spawn import run_bounded

_ARGV = re.compile(r"argv\[\]=(.*?) ; ignore_errors=")
_SECONDS = 30.0
_UNKNOWN = "unknown flag: --validate"
"""Printed by Engines before 23.0."""
_MORE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where systemd lets services look for programs: dockerd must find docker-proxy."""


@dataclass(frozen=True, slots=True)
class Dockerd:
    """The dockerd that a unit runs."""

    words: tuple[str, ...] = ()
    """Its command line, the program first; empty if unknown."""

    def values(self, *flags: str) -> list[str]:
        """Return the values of flags, in order; `true` for a flag without a value."""
        found = []
        for word, following in pairwise((*self.words[1:], "-")):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-") and name in flags:
                found.append(value if equals else "true" if following.startswith("-") else following)
        return found

    def refusal(self, text: str, *, path: Path, environ: Mapping[str, str]) -> str:
        """Return why dockerd would not start with `text` in its daemon.json at `path`; empty if it does not object."""
        if not self.words:
            return ""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(text.encode())
            file.flush()
            try:
                outcome = run_bounded(
                    Path(self.words[0]),
                    arguments=[*self.words[1:], "--validate", "--config-file", file.name],
                    environment={**environ, "PATH": f"{environ.get('PATH', '')}:{_MORE_PATH}"},
                    stdin=b"",
                    timeout=_SECONDS,
                    what="dockerd --validate",
                )
            except OSError:
                return ""  # the program is missing, which systemd reports
            said = outcome.stderr.decode(errors="replace").replace(file.name, str(path)).strip()
        return "" if outcome.returncode == 0 or _UNKNOWN in said else said.rpartition("\n")[2] or "it does not say why"


def dockerd_of_unit(shown: str, *, proc: Path = Path("/proc")) -> Dockerd:
    """Return the dockerd in the output of `systemctl show` with `MainPID` and `ExecStart`.

    Variables in the unit are replaced by the values of the running process.
    """
    found = _ARGV.search(shown)
    words = found[1].split() if found else []
    if any("$" in word for word in words):
        pid = re.search(r"^MainPID=([1-9]\d*)$", shown, re.MULTILINE)
        running = _command_line(proc / pid[1] / "cmdline") if pid else []
        words = running or [word for word in words if "$" not in word]
    return Dockerd(tuple(words))


def _command_line(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []
