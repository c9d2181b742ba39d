"""A thread-safe LRU cache of bounded weight."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key; the least recently used value is evicted first. Thread-safe."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is the maximum total weight of the values."""
        self._capacity = capacity
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """Return the value of `key`; None if it is not cached."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, *, weight: int) -> None:
        """Store a value, unless it alone exceeds the capacity."""
        with self._lock:
            self._evict(key)
            self._entries[key] = value, weight
            self._weight += weight
            while self._weight > self._capacity:
                self._evict(next(iter(self._entries)))

    def keep_only(self, keys: Collection[K]) -> None:
        """Evict all other keys."""
        with self._lock:
            for key in self._entries.keys() - set(keys):
                self._evict(key)

    def _evict(self, key: K) -> None:
        """Evict `key` if it is cached. The lock is held."""
        _, weight = self._entries.pop(key, (None, 0))
        self._weight -= weight
