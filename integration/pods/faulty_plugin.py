"""A CNI plugin that can fail in every way: the real `bridge`, wrapped in a shell script with commands of the test."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Verb = Literal["ADD", "DEL"]

TYPE = "faulty-bridge"
_REACHED_SECONDS = 60.0

# In `before`, `exit` ends the plugin before any work; in `after`, the work is done and $out is its answer.
_SCRIPT = """\
#!/bin/sh
cat >"{home}/stdin"
env >"{home}/env.$CNI_COMMAND"
cp "{home}/stdin" "{home}/stdin.$CNI_COMMAND"
[ -e "{home}/before.$CNI_COMMAND" ] && . "{home}/before.$CNI_COMMAND"
out=$("{real}" <"{home}/stdin")
code=$?
[ -e "{home}/after.$CNI_COMMAND" ] && . "{home}/after.$CNI_COMMAND"
printf %s "$out"
exit $code
"""


class FaultyPlugin:
    """The plugin TYPE in a separate directory. It serves one run at a time."""

    def __init__(self, directory: Path, *, real: Path) -> None:
        """Write it to `directory`; `real` is the plugin `bridge`."""
        self.directory = directory
        self._home = directory / "faults"
        self._home.mkdir(parents=True)
        script = directory / TYPE
        script.write_text(_SCRIPT.format(home=self._home, real=real))
        script.chmod(0o755)

    @contextmanager
    def before(self, verb: Verb, script: str) -> Iterator[None]:
        """Run `script` (shell) inside the plugin before its work."""
        with self._written(f"before.{verb}", script):
            yield

    @contextmanager
    def after(self, verb: Verb, script: str) -> Iterator[None]:
        """Run `script` (shell) inside the plugin after its work."""
        with self._written(f"after.{verb}", script):
            yield

    @contextmanager
    def held(self, verb: Verb, *, done: bool) -> Iterator["HeldPlugin"]:
        """Hold the next run, before its work or once it is `done`; a held run is killed when the block ends."""
        fifo = self._home / "reached"
        os.mkfifo(fifo)
        held = HeldPlugin(fifo)
        script = f'echo $$ >"{fifo}"; exec sleep 1000'
        try:
            with self.after(verb, script) if done else self.before(verb, script):
                yield held
        finally:
            held.close()
            fifo.unlink()

    def seen(self, verb: Verb) -> tuple[dict[str, str], bytes]:
        """Return environment and input of the last run."""
        lines = (self._home / f"env.{verb}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line), (self._home / f"stdin.{verb}").read_bytes()

    @contextmanager
    def _written(self, name: str, script: str) -> Iterator[None]:
        path = self._home / name
        path.write_text(script)
        try:
            yield
        finally:
            path.unlink()


class HeldPlugin:
    """A run of the plugin that is held."""

    def __init__(self, fifo: Path) -> None:
        # Without O_NONBLOCK the open would wait for the plugin, and for ever if the plugin never runs.
        self._fifo = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self._pid = 0
        self._has_reached = False

    def wait_reached(self) -> None:
        """Wait until the plugin is held."""
        assert self.reached(_REACHED_SECONDS), "the plugin never ran"

    def reached(self, seconds: float = 0) -> bool:
        """Wait up to `seconds` for the plugin to be held; return whether it is."""
        if not self._has_reached and select.select([self._fifo], [], [], seconds)[0]:
            self._pid = int(os.read(self._fifo, 64))
            self._has_reached = True
        return self._has_reached

    def gone(self) -> bool:
        """Return whether the plugin's process has ended."""
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    def kill(self) -> None:
        """End the plugin, as systemd ends what a crashed service leaves behind."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._pid = 0

    def close(self) -> None:
        """Kill a held plugin, and stop listening."""
        self.kill()
        os.close(self._fifo)
