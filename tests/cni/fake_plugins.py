"""CNI plugins of shell script: each records how it was run, then answers what the test wrote."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = """#!/bin/sh
call=$(mktemp -d {calls}/XXXXXX)
basename "$0" >"$call/plugin"
env >"$call/env"
cat >"$call/stdin"
echo "$call" >>{calls}/order
"""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One run of a plugin."""

    plugin: str
    verb: str
    environment: dict[str, str]
    config: dict[str, Any]


class FakePlugins:
    """A directory of plugins and what happened to them."""

    def __init__(self, directory: Path) -> None:
        self.bin_dir = directory / "bin"
        self._calls = directory / "calls"
        self._answers = directory / "answers"
        for path in (self.bin_dir, self._calls, self._answers):
            path.mkdir(parents=True)

    def write(self, name: str, body: str = "") -> Path:
        """Make a plugin that runs `body` once it has recorded the call."""
        head = RECORD.format(calls=shlex.quote(str(self._calls)))
        return self.write_program(name, f"{head}{body}\n")

    def write_program(self, name: str, text: str) -> Path:
        """Make a plugin of a whole program."""
        path = self.bin_dir / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def write_answering(self, name: str, answer: object, *, code: int = 0) -> Path:
        """Make a plugin that prints `answer` (bytes as they are, all else as JSON) on ADD, and nothing else."""
        file = self._answers / name
        file.write_bytes(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        return self.write(name, f'[ "$CNI_COMMAND" = ADD ] && cat {shlex.quote(str(file))}; exit {code}')

    @property
    def calls(self) -> list[RecordedCall]:
        """Every finished recording, in order."""
        order = self._calls / "order"
        return [self._recorded(Path(line)) for line in order.read_text().splitlines()] if order.exists() else []

    def _recorded(self, call: Path) -> RecordedCall:
        lines = (call / "env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        return RecordedCall(
            plugin=(call / "plugin").read_text().strip(),
            verb=environment["CNI_COMMAND"],
            environment=environment,
            config=json.loads((call / "stdin").read_bytes()),
        )
