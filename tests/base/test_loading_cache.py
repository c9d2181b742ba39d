import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base.loading_cache import LoadingCache

SECONDS = 30


def test_a_value_is_loaded_once() -> None:
    cache: LoadingCache[str, int] = LoadingCache(capacity=10)
    loads = iter([(1, 5), (2, 5)])

    assert [cache.get_or_load("a", lambda: next(loads), what="load a") for _ in range(3)] == [1, 1, 1]
    assert cache.get("a") == 1


def test_concurrent_callers_share_a_load() -> None:
    cache: LoadingCache[str, int] = LoadingCache(capacity=10)
    entered, go, loads = threading.Event(), threading.Event(), []

    def load() -> tuple[int, int]:
        loads.append(1)
        entered.set()
        assert go.wait(SECONDS)
        return 7, 1

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(cache.get_or_load, "a", load, what="load a") for _ in range(3)]
        assert entered.wait(SECONDS)
        go.set()
        assert [future.result(SECONDS) for future in futures] == [7, 7, 7]
    assert len(loads) == 1


def test_a_failed_load_is_tried_again() -> None:
    cache: LoadingCache[str, int] = LoadingCache(capacity=10)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("a", lambda: (1 // 0, 1), what="load a")

    assert cache.get_or_load("a", lambda: (3, 1), what="load a") == 3


def test_evicted_values_are_loaded_again() -> None:
    cache: LoadingCache[str, int] = LoadingCache(capacity=10)
    for key in "abc":
        cache.get_or_load(key, lambda: (1, 4), what="load")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, 1, 1)

    cache.keep_only(["c"])

    assert (cache.get("b"), cache.get("c")) == (None, 1)
