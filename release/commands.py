"""Run the tools of a build."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.errors import BuildError

_SHOWN = 4000
"""Characters of the end of a tool's output."""


def run_tool(words: Sequence[str | Path], *, environ: Mapping[str, str], cwd: Path | None = None) -> str:
    """Run a tool and return what it prints. Raise BuildError with the end of its output."""
    command = [str(word) for word in words]
    try:
        finished = subprocess.run(
            command,
            env=environ,
            cwd=cwd,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            umask=0o022,  # modes of files are in a wheel as the tool has made them
            check=False,
        )
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    if finished.returncode != 0:
        raise BuildError(f"{' '.join(command[:4])} failed:\n{finished.stdout[-_SHOWN:]}")
    return finished.stdout
