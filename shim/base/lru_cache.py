"""What was found out before, kept as long as there is room."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key; the ones that were asked for the longest time ago make room for new ones. Thread-safe."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is what the values may weigh together, in the unit of `put`."""
        self._capacity = capacity
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """Give a value that is still kept."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: K, value: V, *, weight: int) -> None:
        """Keep a value. One that alone is too heavy is not kept."""
        with self._lock:
            self._drop(key)
            self._kept[key] = value, weight
            self._weight += weight
            while self._weight > self._capacity:
                self._drop(next(iter(self._kept)))

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget all others."""
        with self._lock:
            for key in self._kept.keys() - set(keys):
                self._drop(key)

    def _drop(self, key: K) -> None:
        """Forget one, if it is kept. The lock is held."""
        _, weight = self._kept.pop(key, (None, 0))
        self._weight -= weight
