"""The criu of the tests: a script in a directory of the server's PATH that starts the unpacked program."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from integration.node.packages import Unpacked


@dataclass(frozen=True, slots=True)
class Criu:
    """The criu that the server finds first on PATH: a script, which a test can replace."""

    script: Path
    command: str
    """Shell command that runs the unpacked criu."""

    def install(self, before: str = "") -> None:
        """Write a script that runs criu after the shell lines `before`."""
        self.script.write_text(f'#!/bin/sh\n{before}\nexec {self.command} "$@"\n')
        self.script.chmod(0o755)


def command_of(unpacked: Unpacked, program: str) -> list[str]:
    """Return the command that runs a program with the loader of its own C library."""
    [loader] = unpacked.root.glob("usr/lib/*-linux-gnu*/ld-linux-*.so.*")
    return [str(loader), "--library-path", str(loader.parent), str(unpacked.root / program)]


def criu_in(directory: Path, unpacked: Unpacked) -> Criu:
    """Create a directory with the script."""
    directory.mkdir()
    made = Criu(directory / "criu", shlex.join(command_of(unpacked, "usr/sbin/criu")))
    made.install()
    return made
