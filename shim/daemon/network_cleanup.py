"""Periodic clean-up of networks that belong to no pod (setting `cni_gc_interval`)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shim.daemon.background import background
from shim.daemon.recover import RETRY_SECONDS, run_step
from shim.runtime import Runtime
from shim.sandbox.collect import collect_networks

_COLLECT_RETRY = 15.0
"""Seconds until a failed release of network resources is repeated."""


@contextmanager
def cleaning_networks(rt: Runtime) -> Iterator[None]:
    """Clean up in a background thread: at once, and then periodically."""
    if not rt.config.cni_gc_interval:
        yield
        return
    with background(partial(_clean_periodically, rt), name="cni-gc"):
        yield


def _clean_periodically(rt: Runtime, stopping: threading.Event) -> None:
    while not stopping.wait(_clean(rt)):
        pass


def _clean(rt: Runtime) -> float:
    """Clean up once; return the seconds until the next run."""
    released: list[bool] = []

    def collect(rt: Runtime) -> None:
        released.append(collect_networks(rt))

    if not run_step(rt, collect):
        return RETRY_SECONDS
    return rt.config.cni_gc_interval if all(released) else min(_COLLECT_RETRY, rt.config.cni_gc_interval)
