"""The controls of a `FakeEngine` for tests: failures, waits, lost connections, scripts of execs."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shim.base import deadline
from shim.domain.errors import Unavailable
from tests.fakes.engine_state import ExecScript


class Gate:
    """Holds calls of a method until the test releases them."""

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
    """The part of a `FakeEngine` that counts calls, and makes them fail and wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """Every call: method, and the id, name or reference of its subject."""
        self.answered_at = -math.inf
        self._changed = threading.Condition(threading.RLock())
        self._failures: dict[str, list[Exception]] = {}
        self._lost: dict[str, list[Exception]] = {}
        self._gates: list[Gate] = []
        self._scripts: list[tuple[Callable[[str, list[str]], bool], ExecScript]] = []
        self._connected = True
        self._connection = 0
        """Number of the connection; earlier connections are lost."""

    def calls_of(self, method: str) -> list[str]:
        """Return the subjects of the calls of `method`."""
        return [subject for called, subject in self.calls if called == method]

    def fail_next(self, method: str, *errors: Exception) -> None:
        """Let the next calls of `method` raise these errors, one each, and do nothing."""
        with self._changed:
            self._failures.setdefault(method, []).extend(errors)

    def lose_answer(self, method: str, error: Exception) -> None:
        """Let the next call of `method` do its work, and then raise this error."""
        with self._changed:
            self._lost.setdefault(method, []).append(error)

    @contextmanager
    def held(self, method: str, subject: str | None = None) -> Iterator[Gate]:
        """Hold calls of `method` (on `subject`, or all) inside the block before they do anything.

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
        """Run execs whose container id and command `fits` accepts like `script`; the newest matching script is used."""
        with self._changed:
            self._scripts.insert(0, (fits, script))

    def disconnect(self) -> None:
        """Make every call fail as with a stopped daemon; event streams and waiting calls end."""
        with self._changed:
            self._connected = False
            self._connection += 1
            self.answered_at = -math.inf
            self._changed.notify_all()

    def reconnect(self) -> None:
        """Make calls work again."""
        with self._changed:
            self._connected = True

    @contextmanager
    def _entered(self, method: str, subject: str = "") -> Iterator[None]:
        """Count the call, let it fail or wait as a test has set, and hold the lock for its work."""
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
        """Wait like a call to Docker: until `until` is true, the scope ends, or the connection is lost.

        `connection` is the connection of the earlier call for whose answer this waits.
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
