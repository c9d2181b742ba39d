"""The criu of the tests: a script in a directory of the server's PATH, which starts the unpacked program."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from integration.node.packages import Unpacked


@dataclass(frozen=True, slots=True)
class Criu:
    """The program criu that the server finds first: a script, which a test can replace."""

    script: Path
    command: str
    """Executes the real one."""

    def install(self, before: str = "") -> None:
        """Have the real one run, after these lines of a shell."""
        self.script.write_text(f'#!/bin/sh\n{before}\nexec {self.command} "$@"\n')
        self.script.chmod(0o755)


def command_of(unpacked: Unpacked, program: str) -> list[str]:
    """Return the command for a program, which is started by the loader of its own C library."""
    [loader] = unpacked.root.glob("usr/lib/*-linux-gnu*/ld-linux-*.so.*")
    return [str(loader), "--library-path", str(loader.parent), str(unpacked.root / program)]


def criu_in(directory: Path, unpacked: Unpacked) -> Criu:
    """Make the script in a directory, which is made."""
    directory.mkdir()
    made = Criu(directory / "criu", shlex.join(command_of(unpacked, "usr/sbin/criu")))
    made.install()
    return made
