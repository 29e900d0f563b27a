"""Puts a cache in front of a slow price list, with `millpond.cache`.

A price is loaded once, kept for a minute, and loaded again when it is older.
Absence is cached too: an item without a price is not loaded at every call.

    python examples/cached_prices.py
"""

from collections.abc import Callable

from millpond.cache import Cache, monotonic_ms, new_cache

MINUTE_MS = 60_000


def price_cache(clock: Callable[[], int] = monotonic_ms) -> Cache[str, int | None]:
    """Make a cache of at most 1,000 prices, each of which lives for a minute."""
    return new_cache("prices", max_entries=1_000, expire_after_write_ms=MINUTE_MS, clock=clock)


def total_cents(cache: Cache[str, int | None], basket: list[str], price_of: Callable[[str], int | None]) -> int:
    """Add up the prices of a basket; an item without a price is free."""
    return sum(cache.get_or_load(item, price_of) or 0 for item in basket)


def main() -> None:
    """Price two baskets, and print what the cache saved."""
    prices = {"tea": 250, "milk": 120}
    cache = price_cache()
    for basket in (["tea", "milk", "tea"], ["tea", "sugar", "sugar"]):
        print(basket, total_cents(cache, basket, prices.get))
    stats = cache.stats()
    print(f"{stats.misses} of {stats.hits + stats.misses} prices were asked for")


if __name__ == "__main__":
    main()
