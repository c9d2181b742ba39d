"""A cache that loads what it does not know, once for all who ask at the same time."""

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from shim.base.lru_cache import LruCache
from shim.base.single_flight import SingleFlight

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LoadingCache(Generic[K, V]):
    """An LRU cache of bounded weight, and a single flight for each value being loaded. Thread-safe."""

    def __init__(self, *, capacity: int) -> None:
        """Hold values of at most `capacity` together, in the unit that loaders weigh in."""
        self._known: LruCache[K, V] = LruCache(capacity=capacity)
        self._loads: SingleFlight[V] = SingleFlight()

    def get(self, key: K) -> V | None:
        """Return a value that is in the cache."""
        return self._known.get(key)

    def get_or_load(self, key: K, load: Callable[[], tuple[V, int]], *, what: str) -> V:
        """Return the value of `key`; if it is unknown, `load` returns it with its weight.

        Raise what `load` raises, which is not remembered; Cancelled and DeadlineExceeded name `what`.
        """
        known = self._known.get(key)
        return known if known is not None else self._loads.do(key, lambda: self._load(key, load), what=what)

    def keep_only(self, keys: Collection[K]) -> None:
        """Drop all other values."""
        self._known.keep_only(keys)

    def _load(self, key: K, load: Callable[[], tuple[V, int]]) -> V:
        known = self._known.get(key)
        if known is not None:  # loaded by another caller since this one has asked
            return known
        value, weight = load()
        self._known.put(key, value, weight=weight)
        return value
