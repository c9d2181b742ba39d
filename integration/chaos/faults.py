"""The faults, by name. Each lasts for a given time and then repairs the node."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from integration.chaos import hands
from integration.chaos.moves import move_pods
from integration.chaos.plan import Step
from integration.chaos.target import Target
from integration.node.processes import children, command, executable
from integration.node.stuck import stuck_process

Fault = Callable[[Target, float, Random], None]

_SEARCH_SECONDS = 0.003
"""Pause between two searches for plugins, which live for some tens of milliseconds."""
_PLUGIN_CHANCE = 0.5
_DELAYS = (0.02, 0.1, 0.5, 2.0)
_JUMPS = (-86400, -3600, -30, 30, 3600, 86400)
_BETWEEN_KILLS = (0.2, 6.0)
_SHIM = b"containerd-shim"


def inflict(target: Target, step: Step) -> None:
    """Inflict the fault of a step of the schedule."""
    time.sleep(step.at)
    FAULTS[step.fault](target, step.seconds, Random(step.seed))


def possible(target: Target) -> tuple[str, ...]:
    """Return the names of the faults that this node supports."""
    missing = ("clock jump",) * (not target.clock.can_jump) + ("moves pods", "server moves") * (not target.has_criu)
    return tuple(name for name in FAULTS if name not in missing)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Stop a process with SIGSTOP while the block runs; the process may end meanwhile."""
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
def _losing(target: Target) -> Iterator[None]:
    """Count the times at which Docker may lose output of its containers."""
    target.losses += 1
    yield
    target.losses += 1


def _kill(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_server(target: Target, seconds: float, _random: Random) -> None:
    target.server.kill()
    time.sleep(seconds)
    target.start_server()


def _kill_server_in_moves(target: Target, seconds: float, random: Random) -> None:
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(1) as moving:
        moved = moving.submit(move_pods, target, seconds, random)
        while time.monotonic() < until and not moved.done():
            time.sleep(random.uniform(*_BETWEEN_KILLS))
            target.server.kill()
            target.start_server()
        moved.result()


def _restart_server(target: Target, _seconds: float, _random: Random) -> None:
    target.server.stop()
    target.start_server()


def _stop_server(target: Target, seconds: float, _random: Random) -> None:
    with _stopped(target.server.daemon.pid):
        time.sleep(seconds)


def _kill_docker(target: Target, seconds: float, _random: Random) -> None:
    with _losing(target):
        target.engine.kill()
        time.sleep(seconds)
        target.engine.start()


def _stop_docker(target: Target, seconds: float, _random: Random) -> None:
    with _stopped(target.engine.daemon.pid):
        time.sleep(seconds)


def _kill_containerd(target: Target, _seconds: float, _random: Random) -> None:
    with _losing(target):
        _kill(target.engine.containerd())


def _stop_containerd(target: Target, seconds: float, _random: Random) -> None:
    pid = target.engine.containerd()
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _kill_shim(target: Target, _seconds: float, random: Random) -> None:
    with _losing(target):
        _kill(_random_shim(target, random))


def _stop_shim(target: Target, seconds: float, random: Random) -> None:
    pid = _random_shim(target, random)
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _random_shim(target: Target, random: Random) -> int | None:
    """Return the pid of a random containerd-shim of this engine.

    It names containerd's socket, which is below the engine's home.
    """
    ours = str(target.engine.home).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        # Reading `comm` does not block on a hanging process; command lines are read only of containerd-shims.
        with suppress(OSError):
            if _SHIM in path.read_bytes() and ours in command(int(path.parent.name)):
                found.append(int(path.parent.name))
    return random.choice(sorted(found)) if found else None


def _kill_logs(target: Target, _seconds: float, _random: Random) -> None:
    _kill(target.log_process())


def _stop_logs(target: Target, seconds: float, _random: Random) -> None:
    pid = target.log_process()
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _kill_helper(target: Target, _seconds: float, _random: Random) -> None:
    _kill(target.helper())


def _stop_helper(target: Target, seconds: float, _random: Random) -> None:
    pid = target.helper()
    if pid is not None:
        with _stopped(pid):
            time.sleep(seconds)


def _plugins(target: Target, seconds: float, random: Random, *, signalled: signal.Signals) -> None:
    """Signal some of the plugins that run during `seconds`; the server has to deal with plugins that stay stopped."""
    until = time.monotonic() + seconds
    seen: set[int] = set()
    while time.monotonic() < until:
        time.sleep(_SEARCH_SECONDS)
        server = target.server_pid()
        for pid in children(server) if server is not None else ():
            # Match by executable: between fork and exec a child has the server's command line.
            if pid in seen or not executable(pid).startswith(str(target.dirs.cni_bin)):
                continue
            seen.add(pid)
            if random.random() < _PLUGIN_CHANCE:
                with suppress(ProcessLookupError):
                    os.kill(pid, signalled)


def _kill_plugins(target: Target, seconds: float, random: Random) -> None:
    _plugins(target, seconds, random, signalled=signal.SIGKILL)


def _stop_plugins(target: Target, seconds: float, random: Random) -> None:
    _plugins(target, seconds, random, signalled=signal.SIGSTOP)


def _cut_link(target: Target, seconds: float, random: Random) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        target.link.cut()
        time.sleep(random.uniform(0.05, 1.0))


def _close_link(target: Target, seconds: float, _random: Random) -> None:
    with target.link.down():
        time.sleep(seconds)


def _slow_link(target: Target, seconds: float, random: Random) -> None:
    with target.link.slow(random.choice(_DELAYS)):
        time.sleep(seconds)


def _tear_link(target: Target, seconds: float, random: Random) -> None:
    with target.link.torn(Random(random.random())):
        time.sleep(seconds)


def _fill_disk(target: Target, seconds: float, _random: Random) -> None:
    target.disk.fill()
    time.sleep(seconds)
    target.disk.make_room()


def _hang_volume(target: Target, seconds: float, _random: Random) -> None:
    with target.volume.hanging():
        time.sleep(seconds)


def _hang_process(target: Target, seconds: float, _random: Random) -> None:
    with stuck_process(target.volume):
        time.sleep(seconds)


def _jump_clock(target: Target, seconds: float, random: Random) -> None:
    with target.clock.jumped(random.choice(_JUMPS)):
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
    "hands containers": hands.on_containers,
    "hands engine": hands.on_engine,
    "moves pods": move_pods,
    "server moves": _kill_server_in_moves,
}
"""The word before the space is the part of the node; a round has at most one fault for each part."""
