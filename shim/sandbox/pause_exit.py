"""Ends pause containers, one at a time on Engines whose networks can deadlock.

A pause container leaves Docker's network `none` or `host` when it ends. Before Engine 20.10.27, two containers that
leave the same network at the same time deadlock dockerd in about 1 of 5,000 cases (moby/libnetwork#2679). Then no
container of this network starts or ends until dockerd is restarted. A kubelet stops many pods at the same time.
Application containers join the network of their pause container, and do not leave a network of Docker.

This does not cover ends without the server: a pause container that exits by itself or fails to start, and a stop of
Docker.
"""

from contextlib import AbstractContextManager, nullcontext

from shim.container.teardown import ensure_killed, ensure_removed
from shim.runtime import Runtime

PARALLEL_EXIT_API = (1, 42)
"""API of Engine 23.0. Engine 20.10.27 has the same API as older Engines, so it too ends pause containers in turn."""


def kill_pause(rt: Runtime, sandbox_id: str) -> None:
    """Kill a pause container and wait for its end, as `ensure_killed` does."""
    with _alone(rt):
        # Docker may answer the kill before the container has left its network, but answers the following inspect only
        # afterwards.
        ensure_killed(rt, sandbox_id)


def remove_pause(rt: Runtime, sandbox_id: str) -> None:
    """Remove a pause container, running or not, as `ensure_removed` does."""
    with _alone(rt):
        ensure_removed(rt, sandbox_id)


def _alone(rt: Runtime) -> AbstractContextManager[None]:
    return nullcontext() if rt.engine.api_version >= PARALLEL_EXIT_API else rt.locks.pause_exit()
