"""Another host that pods can reach: a network namespace behind a veth pair, with a web server.

Both end with the process of the web server, which ends with this process.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration.node.commands import NodeError, run
from integration.node.engine import remove_link

PAGE = "hello from outside of the node"
_LINK = "pydockershim0"
_HERE, _THERE = "198.51.100.1", "198.51.100.2"  # in TEST-NET-2, which no network uses
_PORT = 8000
_SECONDS = 30.0
_TICK_SECONDS = 0.02


@contextmanager
def outside(directory: Path) -> Iterator[str]:
    """Run the other host while the block runs, with its page in `directory`; yields the URL of the page."""
    directory.mkdir()
    (directory / "index.html").write_text(f"{PAGE}\n")
    remove_link(_LINK)  # left by a process that was killed just before
    child = subprocess.Popen(
        ["unshare", "--net", "setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "http.server", str(_PORT)],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _connect(child)
        yield f"http://{_THERE}:{_PORT}/"
    finally:
        remove_link(_LINK)
        child.kill()
        child.wait()


def _connect(child: subprocess.Popen[bytes]) -> None:
    there = ["nsenter", f"--net=/proc/{child.pid}/ns/net"]
    ours = Path("/proc/self/ns/net").readlink()
    _wait(child, lambda: Path(f"/proc/{child.pid}/ns/net").readlink() != ours, what="has no network namespace")
    _ip(f"link add {_LINK} type veth peer name eth0 netns {child.pid}")
    _ip(f"address add {_HERE}/30 dev {_LINK}")
    _ip(f"link set {_LINK} up")
    _ip(f"address add {_THERE}/30 dev eth0", there)
    _ip("link set eth0 up", there)
    _wait(child, _answers, what="does not answer")


def _answers() -> bool:
    try:
        with socket.create_connection((_THERE, _PORT), timeout=_SECONDS):
            return True
    except OSError:
        return False


def _wait(child: subprocess.Popen[bytes], condition: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if child.poll() is not None or time.monotonic() > deadline:
            raise NodeError(f"create a host outside the node: its web server {what}")
        time.sleep(_TICK_SECONDS)  # no event announces it


def _ip(arguments: str, prefix: Sequence[str] = ()) -> None:
    run([*prefix, "ip", *arguments.split()], timeout=_SECONDS)
