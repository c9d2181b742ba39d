"""Run code inside a network namespace."""

import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from shim.base import deadline
from shim.base.atomic_files import failing_as
from shim.domain.errors import FailedPrecondition
from shim.netns.pin import is_pinned
from shim.netns.syscalls import enter_network

T = TypeVar("T")


def in_netns(path: Path, call: Callable[[], T]) -> T:
    """Return what `call` returns, or raise what it raises, when run inside the namespace pinned on `path`.

    It runs in a thread made for it, which ends with it: a thread that failed to find its way back into the
    namespace of the host would run later work in the wrong one. The deadline scope is the caller's. When that
    ends first, the caller gets Cancelled or DeadlineExceeded at once, and `call`, which sees the same scope,
    is left to end by itself.
    """
    return _in_namespace(path, partial(_open_pin, path), call)


def in_netns_of(pid: int, call: Callable[[], T], *, confirmed: Callable[[], bool]) -> T:
    """Do the same in the namespace of a process, for one that is not pinned.

    `confirmed` returns, once the namespace is open, whether that still is the process that is meant: what was opened
    does not change any more, while a pid may come to be another's. FailedPrecondition when it is not.
    """
    path = Path(f"/proc/{pid}/ns/net")
    return _in_namespace(path, partial(_open_confirmed, path, confirmed), call)


def _in_namespace(path: Path, opened: Callable[[], int], call: Callable[[], T]) -> T:
    scope = deadline.current()
    what = f"work in the network namespace {path}"
    scope.check(what)
    done: Future[T] = Future()
    awake = threading.Event()
    done.add_done_callback(lambda _: awake.set())
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(_run, path, opened, call, done),
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


def _run(path: Path, opened: Callable[[], int], call: Callable[[], T], done: Future[T]) -> None:
    try:
        with failing_as(_what(path)):
            descriptor = opened()
            try:
                enter_network(descriptor, path=path)
            finally:
                os.close(descriptor)
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
        done.set_exception(error)
    else:
        done.set_result(result)


def _open_pin(path: Path) -> int:
    if not is_pinned(path):
        raise FailedPrecondition(f"{_what(path)}: nothing is pinned there")
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_confirmed(path: Path, confirmed: Callable[[], bool]) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if confirmed():
        return descriptor
    os.close(descriptor)
    raise FailedPrecondition(f"{_what(path)}: the process is another one by now")


def _what(path: Path) -> str:
    return f"enter the network namespace {path}"
