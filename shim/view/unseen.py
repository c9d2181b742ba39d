"""Hides new pod sandboxes and containers from clients until NRI plugins have been notified.

A plugin that is synchronized meanwhile does not get them either, because it gets their event afterwards.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from shim.view.records import Key, Record, key_of

R = TypeVar("R", bound=Record)


class Unseen:
    """The pod sandboxes and containers that are being created. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._untold: frozenset[Key] = frozenset()
        self._hidden: Mapping[Key, Callable[[], bool]] = {}

    @contextmanager
    def making(self, key: Key, *, hidden: Callable[[], bool]) -> Iterator[None]:
        """Hide the object with this key: from plugins until `tell`, from clients inside the block while `hidden()`."""
        with self._lock:
            self._untold |= {key}
            self._hidden = {**self._hidden, key: hidden}
        try:
            yield
        finally:
            with self._lock:
                self._untold -= {key}
                self._hidden = {each: hidden for each, hidden in self._hidden.items() if each != key}

    def tell(self, key: Key) -> None:
        """Record that plugins have been notified."""
        with self._lock:
            self._untold -= {key}

    def is_untold(self, record: Record) -> bool:
        """Return whether plugins have not been notified yet."""
        return bool(self._untold) and key_of(record) in self._untold

    def is_hidden(self, record: Record) -> bool:
        """Return whether the object is hidden from clients."""
        hidden = self._hidden.get(key_of(record)) if self._hidden else None
        return hidden is not None and hidden()

    def seen(self, records: Iterable[R]) -> list[R]:
        """Return the records that clients see, in order."""
        if not self._hidden:
            return list(records)
        return [record for record in records if not self.is_hidden(record)]
