from shim.base.lru_cache import LruCache


def test_get_returns_the_stored_value() -> None:
    kept: LruCache[str, int] = LruCache(capacity=10)
    kept.put("a", 1, weight=5)

    assert kept.get("a") == 1
    assert kept.get("b") is None


def test_the_least_recently_used_value_is_evicted() -> None:
    kept: LruCache[str, int] = LruCache(capacity=10)
    for key in "abc":
        kept.put(key, ord(key), weight=3)
    kept.get("a")
    kept.put("d", ord("d"), weight=3)

    assert {key for key in "abcd" if kept.get(key)} == {"a", "c", "d"}


def test_the_weight_of_a_replaced_value_does_not_count() -> None:
    kept: LruCache[str, int] = LruCache(capacity=10)
    kept.put("a", 1, weight=2)
    for number in range(10):
        kept.put("b", number, weight=8)

    assert (kept.get("a"), kept.get("b")) == (1, 9)


def test_a_value_over_the_capacity_is_not_stored() -> None:
    kept: LruCache[str, int] = LruCache(capacity=10)
    kept.put("a", 1, weight=11)
    kept.put("b", 2, weight=10)

    assert (kept.get("a"), kept.get("b")) == (None, 2)


def test_keep_only_evicts_all_other_keys_and_their_weight() -> None:
    kept: LruCache[str, int] = LruCache(capacity=10)
    kept.put("a", 1, weight=6)
    kept.put("b", 2, weight=4)
    kept.keep_only(["b", "c"])
    kept.put("d", 4, weight=6)

    assert [kept.get(key) for key in "abd"] == [None, 2, 4]
