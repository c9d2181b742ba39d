"""CNI plugins as shell scripts, which record their runs and give prepared answers."""

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
    """A run of a plugin."""

    plugin: str
    verb: str
    environment: dict[str, str]
    config: dict[str, Any]


class FakePlugins:
    """A directory of plugins, and their recorded runs."""

    def __init__(self, directory: Path) -> None:
        self.bin_dir = directory / "bin"
        self._calls = directory / "calls"
        self._answers = directory / "answers"
        for path in (self.bin_dir, self._calls, self._answers):
            path.mkdir(parents=True)

    def write(self, name: str, body: str = "") -> Path:
        """Write a plugin that records the run and then executes `body`."""
        head = RECORD.format(calls=shlex.quote(str(self._calls)))
        return self.write_program(name, f"{head}{body}\n")

    def write_program(self, name: str, text: str) -> Path:
        """Write a plugin with the content `text`."""
        path = self.bin_dir / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def write_answering(self, name: str, answer: object, *, code: int = 0) -> Path:
        """Write a plugin that prints `answer` on ADD, as JSON unless it is bytes, and nothing on other verbs."""
        file = self._answers / name
        file.write_bytes(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        return self.write(name, f'[ "$CNI_COMMAND" = ADD ] && cat {shlex.quote(str(file))}; exit {code}')

    @property
    def calls(self) -> list[RecordedCall]:
        """All recorded runs, in order."""
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
