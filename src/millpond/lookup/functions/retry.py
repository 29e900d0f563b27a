"""Trying again, where that can help.

The invariant: only a failure that may pass by itself is tried again (`UnavailableError`,
`ConnectionError`, `TimeoutError`); a wrong query or a bug of the user's is raised at once, as it
is. When the tries are used up the caller gets an `UnavailableError` that names the table.

Between tries it waits a random time below a limit that doubles, so that many workers do not come
back together.

Source: Brooker, "Exponential backoff and jitter" (AWS, 2015): full jitter.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from millpond.errors import UnavailableError

T = TypeVar("T")
_PASSING = (UnavailableError, ConnectionError, TimeoutError)


class Retries:
    """How often and how patiently to try again.

    Args:
        max_retries: tries after the first.
        first_wait_ms: the limit of the first wait.
        longest_wait_ms: the limit at which doubling ends.
        sleep: waits the given seconds, in `run`.
        async_sleep: the same in `run_async`.
        randomness: draws the waits; seeded by the system if None.
    """

    def __init__(
        self,
        max_retries: int = 3,
        *,
        first_wait_ms: int = 100,
        longest_wait_ms: int = 5_000,
        sleep: Callable[[float], None] = time.sleep,
        async_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        randomness: random.Random | None = None,
    ) -> None:
        self._max_retries = max_retries
        self._first_wait_ms = first_wait_ms
        self._longest_wait_ms = longest_wait_ms
        self._sleep = sleep
        self._async_sleep = async_sleep
        self._randomness = random.Random() if randomness is None else randomness

    def run(self, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, after as many tries as it takes and are allowed."""
        waits = self._waits_s()
        while True:
            try:
                return call()
            except _PASSING as error:
                wait_s = next(waits, None)
                if wait_s is None:
                    raise self._given_up(what, error) from error
            self._sleep(wait_s)

    async def run_async(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """What `call()` gives when awaited, after as many tries as it takes and are allowed."""
        waits = self._waits_s()
        while True:
            try:
                return await call()
            except _PASSING as error:
                wait_s = next(waits, None)
                if wait_s is None:
                    raise self._given_up(what, error) from error
            await self._async_sleep(wait_s)

    def _waits_s(self) -> Iterator[float]:
        limit_ms = self._first_wait_ms
        for _ in range(self._max_retries):
            yield self._randomness.uniform(0, limit_ms) / 1_000
            limit_ms = min(2 * limit_ms, self._longest_wait_ms)

    def _given_up(self, what: str, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"{what}: no answer after {self._max_retries + 1} tries, the last failed with "
            f"{type(error).__name__}: {error}; check that the source is up, or raise lookup.max-retries"
        )
