"""An LRU cache that loads each missing value once for all concurrent callers."""

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from shim.base.lru_cache import LruCache
from shim.base.single_flight import SingleFlight

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LoadingCache(Generic[K, V]):
    """An LRU cache of bounded weight that loads missing values, with a single flight for each key. Thread-safe."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is the maximum total weight of the values, in the unit that the loaders return."""
        self._known: LruCache[K, V] = LruCache(capacity=capacity)
        self._loads: SingleFlight[V] = SingleFlight()

    def get(self, key: K) -> V | None:
        """Return the value of `key` if it is cached, else None."""
        return self._known.get(key)

    def get_or_load(self, key: K, load: Callable[[], tuple[V, int]], *, what: str) -> V:
        """Return the value of `key`. If it is not cached, `load` returns the value and its weight.

        Raise the error of `load`, which is not cached, and Cancelled or DeadlineExceeded, which name `what`.
        """
        known = self._known.get(key)
        return known if known is not None else self._loads.do(key, lambda: self._load(key, load), what=what)

    def keep_only(self, keys: Collection[K]) -> None:
        """Evict the values of all other keys."""
        self._known.keep_only(keys)

    def _load(self, key: K, load: Callable[[], tuple[V, int]]) -> V:
        known = self._known.get(key)
        if known is not None:  # another caller loaded it after the first look-up
            return known
        value, weight = load()
        self._known.put(key, value, weight=weight)
        return value
