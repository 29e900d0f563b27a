"""What type checkers make of `millpond.cache`."""

from typing import assert_type

from millpond.cache import MISSING, Cache, CacheStats, Missing, deep_size, monotonic_ms, new_cache


def a_cache_knows_the_types_of_its_keys_and_values() -> None:
    prices: Cache[str, int] = new_cache("prices", max_entries=10, clock=monotonic_ms, shared=True)
    prices.put("tea", 250)
    assert_type(prices.get("tea"), int | None)
    assert_type(prices.get("tea", MISSING), int | Missing)
    assert_type(prices.get_or_load("milk", len), int)
    assert_type(prices.stats(), CacheStats)
    assert_type(deep_size("tea", 250), int)


def a_wrong_key_value_or_policy_is_an_error() -> None:
    prices: Cache[str, int] = new_cache("prices", max_entries=10, policy="lfu")  # type: ignore[arg-type]
    prices.put(1, 250)  # type: ignore[arg-type]
    prices.put("tea", "250")  # type: ignore[arg-type]
    prices.get_or_load("tea", str.upper)  # type: ignore[arg-type]
