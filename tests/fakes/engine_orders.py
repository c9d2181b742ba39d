"""What tests order from a `FakeEngine`: failures, waits, lost connections, the way execs run. And how it waits."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shim.base import deadline
from shim.domain.errors import Unavailable
from tests.fakes.engine_state import ExecScript


class Gate:
    """Where calls of one method wait until the test lets them go on."""

    def __init__(self, method: str, subject: str | None) -> None:
        self.method = method
        self.subject = subject
        self.entered = threading.Event()
        """Set when the first call waits."""
        self.released = False

    def is_released(self) -> bool:
        return self.released

    def holds(self, method: str, subject: str) -> bool:
        return not self.released and self.method == method and self.subject in (None, subject)

    def wait_entered(self, seconds: float = 10) -> None:
        assert self.entered.wait(seconds), f"no call of {self.method} came"


class Orders:
    """The part of a `FakeEngine` that makes its calls fail, wait and be counted."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """Every call: method, and the id, name or reference it was about."""
        self.answered_at = -math.inf
        self._changed = threading.Condition(threading.RLock())
        self._failures: dict[str, list[Exception]] = {}
        self._lost: dict[str, list[Exception]] = {}
        self._gates: list[Gate] = []
        self._scripts: list[tuple[Callable[[str, list[str]], bool], ExecScript]] = []
        self._connected = True
        self._connection = 0
        """Number of the connection; those of before are lost."""

    def calls_of(self, method: str) -> list[str]:
        """What the calls of `method` were about."""
        return [subject for called, subject in self.calls if called == method]

    def fail_next(self, method: str, *errors: Exception) -> None:
        """Let the coming calls of `method` raise these, one each; the calls do nothing."""
        with self._changed:
            self._failures.setdefault(method, []).extend(errors)

    def lose_answer(self, method: str, error: Exception) -> None:
        """Let the next call of `method` do its work and raise this nevertheless."""
        with self._changed:
            self._lost.setdefault(method, []).append(error)

    @contextmanager
    def held(self, method: str, subject: str | None = None) -> Iterator[Gate]:
        """Let calls of `method` (about `subject`, or all) wait inside the block before they do anything.

        A removal waits with its container in the state `removing`.
        """
        gate = Gate(method, subject)
        with self._changed:
            self._gates.append(gate)
        try:
            yield gate
        finally:
            self.release(gate)

    def release(self, gate: Gate) -> None:
        """Let the calls at `gate` go on."""
        with self._changed:
            gate.released = True
            self._changed.notify_all()

    def script_exec(
        self, script: ExecScript, *, fits: Callable[[str, list[str]], bool] = lambda _id, _command: True
    ) -> None:
        """Let an exec whose container id and command `fits` accepts run like `script`; the newest order counts."""
        with self._changed:
            self._scripts.insert(0, (fits, script))

    def disconnect(self) -> None:
        """Let every call fail as with a stopped daemon; event streams and waiting calls end."""
        with self._changed:
            self._connected = False
            self._connection += 1
            self.answered_at = -math.inf
            self._changed.notify_all()

    def reconnect(self) -> None:
        """Let calls work again."""
        with self._changed:
            self._connected = True

    @contextmanager
    def _entered(self, method: str, subject: str = "") -> Iterator[None]:
        """Count the call, let it fail or wait as ordered, and hold the lock for its work."""
        with self._changed:
            self._arrive(method, subject)
            self._wait_gates(method, subject)
            yield
            self._answer(method)

    def _answer(self, method: str) -> None:
        self.answered_at = time.monotonic()
        if lost := self._lost.get(method):
            raise lost.pop(0)

    def _arrive(self, method: str, subject: str) -> None:
        self.calls.append((method, subject))
        deadline.current().check(f"{method} {subject}")
        if not self._connected:
            raise Unavailable(f"{method} {subject}: Docker cannot be reached")
        if ordered := self._failures.get(method):
            raise ordered.pop(0)

    def _wait_gates(self, method: str, subject: str) -> None:
        for gate in [gate for gate in self._gates if gate.holds(method, subject)]:
            gate.entered.set()
            self._wait(gate.is_released, f"{method} {subject}")

    def _wait(self, until: Callable[[], bool], what: str, *, connection: int | None = None) -> None:
        """Wait like a call to Docker: until it is so, the scope ends, or the connection is lost.

        `connection` is that of an earlier call whose answer this waits for.
        """
        scope = deadline.current()
        connection = self._connection if connection is None else connection
        with scope.on_cancel(self._wake):
            while not until():
                scope.check(what)
                if connection != self._connection:
                    raise Unavailable(f"{what}: the connection to docker was lost")
                self._changed.wait(scope.remaining())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _script_for(self, container_id: str, command: list[str]) -> ExecScript:
        return next((script for fits, script in self._scripts if fits(container_id, command)), ExecScript())
