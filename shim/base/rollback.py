"""Undoes the steps of an operation that failed.

Register each undo before its step, so that a step which fails half-way, or whose answer is lost, is undone too. Every
undo must therefore accept that there is nothing to undo. Undos run in reverse and stop at the first failure: earlier
steps are still used by the step that could not be undone. The records that let Stop and Remove finish later must be
registered first, so that they are undone last.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from shim.base import deadline

UNDO_SECONDS = 120.0
"""Bound on all undos of one operation. They run even if the client has disconnected."""

log = structlog.get_logger(__name__)


class Rollback:
    """A block whose steps are undone in reverse unless `commit` was called."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._undos: list[tuple[str, Callable[[], object]]] = []
        self._committed = False

    def undo(self, step: str, action: Callable[[], object]) -> None:
        """Register the undo of a step before the step is done; `step` names it in the log."""
        self._undos.append((step, action))

    def commit(self) -> None:
        """Keep all steps."""
        self._committed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._committed:
            return
        with deadline.shielded(UNDO_SECONDS):
            for step, action in reversed(self._undos):
                if not self._run(step, action, error):
                    return

    def _run(self, step: str, action: Callable[[], object], error: BaseException | None) -> bool:
        try:
            action()
        except Exception as failure:  # noqa: BLE001 - the caller gets the first error, with this failure as a note
            log.warning("undo failed", operation=self._what, undo=step, error=failure)
            if error is not None:
                error.add_note(f"undo of {step} failed: {failure}")
            return False
        return True
