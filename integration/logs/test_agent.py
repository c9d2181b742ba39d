"""Debian's rsyslog reads the logs of pods with the configuration in docs/migration.md."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.logs.conftest import Logged
from integration.logs.crilog import PIECE, output, with_rotated
from integration.node.daemon import Daemon
from integration.node.isolation import Node
from integration.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/migration.md"
SECONDS = 60.0
ROTATIONS = 5
LINES_BETWEEN = 1000
LONG = 5 * PIECE // 2
"""Bytes of each long line, which becomes three records."""
COUNT = f"""
long=$(head -c {LONG} /dev/zero | tr '\\0' x)
i=0
while [ ! -e /stop ]; do
    [ $((i % 1000)) = 0 ] && echo $i-$long || echo $i
    [ $((i % 100)) = 0 ] && sleep 0.02
    i=$((i+1))
done
"""
_PART = re.compile(r"\A[^ ]+ (?:stdout|stderr) [PF] ")


def configuration() -> str:
    """Return the page's configuration of rsyslog."""
    found = re.search(r"<!-- agent: rsyslog -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def agent(node: Node, home: Path, directory: Path) -> Iterator[Path]:
    """Run rsyslog on the logs in `directory`; yields the file with a line for each of its messages."""
    root, out = node.log_agent.root, home / "out"
    (home / "work").mkdir(parents=True)
    lines = (
        configuration()
        .replace("/var/log/pods/*/*/*.log", f"{directory}/*/*.log")
        .replace("/var/log/pods.out", str(out))
    )
    (home / "conf").write_text(f'global(workDirectory="{home}/work")\n{lines}')
    modules = next((root / "usr/lib").glob("*/rsyslog"))
    daemon = Daemon(
        [root / "usr/sbin/rsyslogd", "-n", "-f", home / "conf", "-i", home / "pid", "-M", modules],
        log=home / "log",
        env={**os.environ, "LD_LIBRARY_PATH": str(modules.parent)},
    )
    daemon.start(ready=(home / "pid").exists, timeout=SECONDS)
    try:
        yield out
    finally:
        daemon.stop(timeout=SECONDS)


def messages(out: Path) -> list[str]:
    """Return the container's lines in the agent's file, without times and tags."""
    found = out.read_text().split("\n")[:-1]
    return ["".join(_PART.sub("", part) for part in line.split("\\n")) for line in found]


def wait_for_lines(out: Path, lines: int) -> None:
    """Wait until the agent has this many lines."""
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= lines, SECONDS)


def test_an_agent_joins_lines_and_follows_rotation_without_loss(own: Logged, node: Node, tmp_path: Path) -> None:
    own.directory.mkdir(exist_ok=True)
    with agent(node, tmp_path / "agent", own.directory) as out:
        container_id, path = own.run(COUNT)
        for number in range(ROTATIONS):
            wait_for_lines(out, LINES_BETWEEN * (number + 1))
            own.rotate(container_id, path, number)
        own.served.cri.exec(container_id, "touch", "/stop")
        own.wait_exited(container_id)
        written = output(with_rotated(path)).decode().split("\n")[:-1]
        wait_for_lines(out, len(written))
        found = messages(out)

    long = "x" * LONG
    assert written == [f"{number}-{long}" if number % 1000 == 0 else str(number) for number in range(len(written))]
    assert found == written
