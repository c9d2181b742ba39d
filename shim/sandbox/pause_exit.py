"""Ending pause containers, one after the other where Docker's networks deadlock.

A container with a network of its own, or the host's, leaves one of Docker's networks when it ends. Before Engine
20.10.27 two that leave the same one at the same time can deadlock dockerd (moby/libnetwork#2679), about once in 5,000
times: from then on no such container starts and none ends, until dockerd is restarted. All pods leave `none` or `host`,
and a kubelet stops many at the same time. Application containers are in the network of their pause and leave none.

What ends without the server is not covered: pause by itself, one whose start fails, and all when Docker stops.
"""

from contextlib import AbstractContextManager, nullcontext

from shim.container.teardown import ensure_killed, ensure_removed
from shim.runtime import Runtime

PARALLEL_EXIT_API = (1, 42)
"""Of Engine 23.0. 20.10.27 has the API of those before it, and a drain of its node takes as long as with them."""


def kill_pause(rt: Runtime, sandbox_id: str) -> None:
    """Kill a pause container and wait for its end, as `ensure_killed`."""
    with _alone(rt):
        # Docker answers the kill before the container has left its network, but the inspect that follows only then.
        ensure_killed(rt, sandbox_id)


def remove_pause(rt: Runtime, sandbox_id: str) -> None:
    """Remove a pause container that may run, as `ensure_removed`."""
    with _alone(rt):
        ensure_removed(rt, sandbox_id)


def _alone(rt: Runtime) -> AbstractContextManager[None]:
    return nullcontext() if rt.engine.api_version >= PARALLEL_EXIT_API else rt.locks.pause_exit()
