"""Runs an asynchronous lookup for blocking callers, in a thread with its own event loop.

With it a Spark worker, which does not use asyncio, can use an asynchronous source like any other. The keys of a batch
are requested together, as many at a time as the capacity allows.

The invariant: the asynchronous lookup is used in that loop only. Any other thread may call. A call from within
the loop would wait for itself, so it raises an error.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from millpond.errors import OptionError, UnavailableError
from millpond.lookup.caches.async_partial import AsyncPartialCachingLookup
from millpond.lookup.functions.answers import Answers
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.hit_history import HitRate
from millpond.lookup.metrics import LookupStats

T = TypeVar("T")
_CLOSE_S = 5.0


class BlockingLookup(LookupFunction):
    """An `AsyncPartialCachingLookup` as a `LookupFunction`; thread-safe."""

    def __init__(self, lookup: AsyncPartialCachingLookup) -> None:
        self.key_schema = lookup.key_schema
        self.row_schema = lookup.row_schema
        self._lookup = lookup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening = threading.Lock()
        self._starting = threading.Lock()

    def open(self) -> None:
        """Start the loop and open the lookup in it. A concurrent `open` waits for this one."""
        with self._opening:
            if self._loop is None:
                self._open()

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="millpond-lookup", daemon=True)
        self._thread.start()
        try:
            self._wait(self._lookup.open())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Close the lookup and end the loop. Lookups under way fail with an `UnavailableError`.

        Raises:
            UnavailableError: the source did not close in time.
        """
        if self._loop is None:
            return
        try:
            self._wait(self._lookup.close(), _CLOSE_S)
        except TimeoutError as error:
            raise UnavailableError(
                f"lookup table {self._lookup.name!r}: its asynchronous source did not close within {_CLOSE_S:.0f} s. "
                "Connections may stay open until this process ends; make its close() return sooner."
            ) from error
        finally:
            self._stop()

    def stats(self) -> LookupStats:
        """Return the counters so far."""
        return self._lookup.stats()

    def hit_rates(self) -> list[HitRate]:
        """Return the hits and misses of each of the last 60 minutes that had a lookup, oldest first."""
        return self._lookup.hit_rates()

    def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key."""
        return self._wait(self._lookup.lookup_many(keys))

    def lookup_each(self, keys: Sequence[Key]) -> Answers:
        """Return the rows of every key, or its failure."""
        return self._wait(self._lookup.lookup_each(keys))

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys whose rows have changed; None removes all."""

        async def forget() -> None:
            self._lookup.invalidate(keys)

        self._wait(forget())

    def forget_missing(self, keys: Sequence[Key]) -> None:
        """Remove those keys that are cached as missing, so that their next lookup asks the source."""

        async def forget() -> None:
            self._lookup.forget_missing(keys)

        self._wait(forget())

    def _wait(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        with self._starting:
            # Under the lock, so that `_stop` cancels whatever was started before.
            if self._loop is None or threading.current_thread() is self._thread:
                coroutine.close()
                raise OptionError(
                    "this lookup is not open; call open(), or use it in a with statement"
                    if self._loop is None
                    else "a blocking lookup was called in its own event loop; await the asynchronous one there"
                )
            started = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return started.result(timeout_s)
        except CancelledError as error:
            raise UnavailableError(
                f"lookup table {self._lookup.name!r} was closed during this lookup; close it after its last lookup"
            ) from error

    def _stop(self) -> None:
        with self._starting:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_end(loop), loop)
            thread.join(_CLOSE_S)
            if not thread.is_alive():
                loop.close()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Stop a loop, after cancelling whatever still runs there, so that no thread waits for it for ever."""
    others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CLOSE_S / 2)
    loop.stop()
