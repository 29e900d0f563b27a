"""Retries of failures that may pass by themselves.

The invariant: only a passing failure is tried again (`UnavailableError`, `ConnectionError`,
`TimeoutError`). Any other error, such as a wrong query or a bug in user code, is raised at once and
unchanged. After the last try the caller gets an `UnavailableError` that names the table.

Before each retry it waits a random time below a limit that doubles, so that many workers do not
retry at the same moment.

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
    """Runs calls with retries: how many, and how long to wait in between.

    Args:
        max_retries: the largest number of tries after the first.
        first_wait_ms: the upper limit of the first wait.
        longest_wait_ms: the upper limit of every wait.
        sleep: waits the given seconds; for `run`.
        async_sleep: waits the given seconds; for `run_async`.
        randomness: draws the waits; None is seeded by the system.
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
        """Return the result of `call`, trying again after passing failures."""
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
        """Await `call()` and return its result, trying again after passing failures."""
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
