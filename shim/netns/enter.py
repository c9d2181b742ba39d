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
    """Run `call` inside the network namespace pinned on `path`; return its result or raise its exception.

    `call` runs in a new thread, because a thread that cannot switch back to the host's namespace would do later work in
    the wrong namespace. The thread has the caller's deadline scope. If the scope ends first, the caller gets Cancelled
    or DeadlineExceeded at once, and the thread ends by itself.
    """
    return _in_namespace(path, partial(_open_pin, path), call)


def in_netns_of(pid: int, call: Callable[[], T], *, confirmed: Callable[[], bool]) -> T:
    """Like `in_netns`, in the network namespace of process `pid`, which need not be pinned.

    `confirmed` returns whether `pid` still is the intended process. It is called once the namespace is open: an open
    namespace stays the same, while the kernel may give the pid to another process. Raise FailedPrecondition if it
    returns False.
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
    # From here on only the pin and the pod's processes keep the namespace alive.
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
    except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
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
    raise FailedPrecondition(f"{_what(path)}: another process has this pid by now")


def _what(path: Path) -> str:
    return f"enter the network namespace {path}"
