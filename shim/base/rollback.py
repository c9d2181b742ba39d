"""Undo what a half-done operation has built.

Each undo is registered before its operation: one that fails half-way, or whose answer is lost, is undone too, so every
undo must accept that there is nothing to undo. Undos run in reverse and stop at the first that fails: what lies
below it is still in use by what could not be undone, and the records that let Stop and Remove finish later are
always registered first, hence undone last.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from shim.base import deadline

UNDO_SECONDS = 120.0
"""Bound on all undos of one operation; they run although the client is gone."""

log = structlog.get_logger(__name__)


class Rollback:
    """A block whose steps are undone in reverse unless `commit` was called."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._undos: list[tuple[str, Callable[[], object]]] = []
        self._committed = False

    def undo(self, words: str, action: Callable[[], object]) -> None:
        """Register `action` before the operation it undoes; `words` name it in the log."""
        self._undos.append((words, action))

    def commit(self) -> None:
        """Keep everything that was done."""
        self._committed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._committed:
            return
        with deadline.shielded(UNDO_SECONDS):
            for words, action in reversed(self._undos):
                if not self._run(words, action, error):
                    return

    def _run(self, words: str, action: Callable[[], object], error: BaseException | None) -> bool:
        try:
            action()
        except Exception as failure:  # noqa: BLE001 - the first error is the one to report; this one is noted on it
            log.warning("undo failed", operation=self._what, undo=words, error=failure)
            if error is not None:
                error.add_note(f"undo of {words} failed: {failure}")
            return False
        return True
