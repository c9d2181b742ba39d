"""Run code inside a network namespace."""

import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from shim import deadline
from shim.disk import failing_as
from shim.errors import FailedPrecondition
from shim.netns.pin import is_pinned
from shim.netns.syscalls import enter_network

T = TypeVar("T")


def in_netns(path: Path, call: Callable[[], T]) -> T:
    """Give what `call` returns, or raise what it raises, when run inside the namespace pinned on `path`.

    It runs in a thread made for it, which ends with it: a thread that failed to find its way back into the
    namespace of the host would run later work in the wrong one. The deadline scope is the caller's. When that
    ends first, the caller gets Cancelled or DeadlineExceeded at once, and `call`, which sees the same scope,
    is left to end by itself.
    """
    scope = deadline.current()
    what = f"work in the network namespace {path}"
    scope.check(what)
    done: Future[T] = Future()
    awake = threading.Event()
    done.add_done_callback(lambda _: awake.set())
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(_run, path, call, done),
        name=f"netns {path.name}",
        daemon=True,
    )
    thread.start()
    with scope.on_cancel(awake.set):
        while not done.done():
            scope.check(what)
            awake.wait(scope.remaining())
    # Once it has ended, nothing but the pin and the pod's processes keeps the namespace alive.
    thread.join()
    return done.result()


def _run(path: Path, call: Callable[[], T], done: Future[T]) -> None:
    try:
        _enter(path)
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
        done.set_exception(error)
    else:
        done.set_result(result)


def _enter(path: Path) -> None:
    what = f"enter the network namespace {path}"
    if not is_pinned(path):
        raise FailedPrecondition(f"{what}: nothing is pinned there")
    with failing_as(what):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            enter_network(descriptor, path=path)
        finally:
            os.close(descriptor)
