"""What can happen to the node, by name. Each lasts for the time it is given, and leaves the node whole."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from integration.chaos.bed import Bed
from integration.chaos.plan import Step
from integration.node.processes import children, command, executable
from integration.node.stuck import stuck_process

Fault = Callable[[Bed, float, Random], None]

_SEARCH_SECONDS = 0.003
"""Between two searches for plugins: they live for some tens of milliseconds."""
_PLUGIN_CHANCE = 0.5
_DELAYS = (0.02, 0.1, 0.5, 2.0)
_JUMPS = (-86400, -3600, -30, 30, 3600, 86400)
_SHIM = b"containerd-shim"


def inflict(bed: Bed, step: Step) -> None:
    """Let a step of the schedule happen."""
    time.sleep(step.at)
    FAULTS[step.fault](bed, step.seconds, Random(step.seed))


def possible(bed: Bed) -> tuple[str, ...]:
    """Return the names of the faults that can happen on this node."""
    return tuple(name for name in FAULTS if bed.clock.can_jump or not name.startswith("clock "))


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Have a process stand still while the block runs; it may end meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
        yield
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGCONT)
    finally:
        os.close(handle)


@contextmanager
def _losing(bed: Bed) -> Iterator[None]:
    """Remember that Docker may lose output of its containers."""
    bed.losses += 1
    yield
    bed.losses += 1


def _kill(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_server(bed: Bed, seconds: float, _random: Random) -> None:
    bed.server.kill()
    time.sleep(seconds)
    bed.start_server()


def _restart_server(bed: Bed, _seconds: float, _random: Random) -> None:
    bed.server.stop()
    bed.start_server()


def _stop_server(bed: Bed, seconds: float, _random: Random) -> None:
    with _stopped(bed.server.daemon.pid):
        time.sleep(seconds)


def _kill_docker(bed: Bed, seconds: float, _random: Random) -> None:
    with _losing(bed):
        bed.engine.kill()
        time.sleep(seconds)
        bed.engine.start()


def _stop_docker(bed: Bed, seconds: float, _random: Random) -> None:
    with _stopped(bed.engine.daemon.pid):
        time.sleep(seconds)


def _kill_containerd(bed: Bed, _seconds: float, _random: Random) -> None:
    with _losing(bed):
        _kill(bed.containerd())


def _stop_containerd(bed: Bed, seconds: float, _random: Random) -> None:
    pid = bed.containerd()
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _kill_shim(bed: Bed, _seconds: float, random: Random) -> None:
    with _losing(bed):
        _kill(_some_shim(bed, random))


def _stop_shim(bed: Bed, seconds: float, random: Random) -> None:
    pid = _some_shim(bed, random)
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _some_shim(bed: Bed, random: Random) -> int | None:
    """Return the id of one of this engine's shims: they name containerd's socket, which is below its home."""
    ours = str(bed.engine.home).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        # `comm` does not wait for a process that hangs; the command line of one that is no shim is not read.
        with suppress(OSError):
            if _SHIM in path.read_bytes() and ours in command(int(path.parent.name)):
                found.append(int(path.parent.name))
    return random.choice(sorted(found)) if found else None


def _kill_logs(bed: Bed, _seconds: float, _random: Random) -> None:
    _kill(bed.log_process())


def _stop_logs(bed: Bed, seconds: float, _random: Random) -> None:
    pid = bed.log_process()
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _kill_helper(bed: Bed, _seconds: float, _random: Random) -> None:
    _kill(bed.helper())


def _stop_helper(bed: Bed, seconds: float, _random: Random) -> None:
    pid = bed.helper()
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _plugins(bed: Bed, seconds: float, random: Random, *, signalled: signal.Signals) -> None:
    """Send a signal to some of the plugins that run in this time; stopped ones are left to the server."""
    until = time.monotonic() + seconds
    seen: set[int] = set()
    while time.monotonic() < until:
        time.sleep(_SEARCH_SECONDS)
        server = bed.server_pid()
        for pid in children(server) if server is not None else ():
            # By its file: before its exec a child has the command line of the server.
            if pid in seen or not executable(pid).startswith(str(bed.dirs.cni_bin)):
                continue
            seen.add(pid)
            if random.random() < _PLUGIN_CHANCE:
                with suppress(ProcessLookupError):
                    os.kill(pid, signalled)


def _kill_plugins(bed: Bed, seconds: float, random: Random) -> None:
    _plugins(bed, seconds, random, signalled=signal.SIGKILL)


def _stop_plugins(bed: Bed, seconds: float, random: Random) -> None:
    _plugins(bed, seconds, random, signalled=signal.SIGSTOP)


def _cut_link(bed: Bed, seconds: float, random: Random) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        bed.link.cut()
        time.sleep(random.uniform(0.05, 1.0))


def _close_link(bed: Bed, seconds: float, _random: Random) -> None:
    with bed.link.down():
        time.sleep(seconds)


def _slow_link(bed: Bed, seconds: float, random: Random) -> None:
    with bed.link.slow(random.choice(_DELAYS)):
        time.sleep(seconds)


def _tear_link(bed: Bed, seconds: float, random: Random) -> None:
    with bed.link.torn(Random(random.random())):
        time.sleep(seconds)


def _fill_disk(bed: Bed, seconds: float, _random: Random) -> None:
    bed.disk.fill()
    time.sleep(seconds)
    bed.disk.make_room()


def _hang_volume(bed: Bed, seconds: float, _random: Random) -> None:
    with bed.volume.hanging():
        time.sleep(seconds)


def _hang_process(bed: Bed, seconds: float, _random: Random) -> None:
    with stuck_process(bed.volume):
        time.sleep(seconds)


def _jump_clock(bed: Bed, seconds: float, random: Random) -> None:
    with bed.clock.jumped(random.choice(_JUMPS)):
        time.sleep(seconds)


FAULTS: dict[str, Fault] = {
    "server kill": _kill_server,
    "server stop": _stop_server,
    "server restart": _restart_server,
    "docker kill": _kill_docker,
    "docker stop": _stop_docker,
    "containerd kill": _kill_containerd,
    "containerd stop": _stop_containerd,
    "shim kill": _kill_shim,
    "shim stop": _stop_shim,
    "logs kill": _kill_logs,
    "logs stop": _stop_logs,
    "helper kill": _kill_helper,
    "helper stop": _stop_helper,
    "plugins kill": _kill_plugins,
    "plugins stop": _stop_plugins,
    "link cut": _cut_link,
    "link down": _close_link,
    "link slow": _slow_link,
    "link torn": _tear_link,
    "disk full": _fill_disk,
    "volume hang": _hang_volume,
    "volume process": _hang_process,
    "clock jump": _jump_clock,
}
"""The word before the space is the part of the node; in one round each part meets one fault at most."""
