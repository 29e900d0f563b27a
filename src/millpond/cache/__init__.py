"""The one bounded map that all of Millpond uses."""

from millpond.cache.api import MISSING, Bounds, Cache, CacheStats, Missing, monotonic_ms
from millpond.cache.factory import new_cache
from millpond.cache.weight import deep_size

__all__ = ["MISSING", "Bounds", "Cache", "CacheStats", "Missing", "deep_size", "monotonic_ms", "new_cache"]
