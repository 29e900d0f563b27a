"""Runs the loads of a cache that belongs to one thread. Caches of several threads use `millpond.cache.flights`."""

from collections.abc import Callable
from typing import Generic

from millpond.cache.api import K, V
from millpond.errors import OptionError


class Loads(Generic[K, V]):
    """The loads of a cache that belongs to one thread. Counts them and raises if a key's load needs that key."""

    __slots__ = ("_name", "_running", "failed", "tried")

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[K] = set()
        self.tried = 0
        self.failed = 0

    def run(self, key: K, loader: Callable[[K], V]) -> V:
        """Return what the loader returns; raise `OptionError` if the key is already being loaded."""
        if key in self._running:
            raise reentry(self._name, key)
        self._running.add(key)
        self.tried += 1
        try:
            return loader(key)
        except BaseException:
            self.failed += 1
            raise
        finally:
            self._running.discard(key)


def reentry(name: str, key: object) -> OptionError:
    """Return the error for a loader that would wait for its own result."""
    return OptionError(
        f"cache {name!r}: the loader of key {key!r} needs that key while it is loading it, which would wait "
        "for itself for ever; let the loader get what it needs from outside the cache"
    )
