"""Whether the service can answer: the store answers, and every GroupBy has a batch.

Invariant: however often readiness is asked for, the store is asked once per `FRESH_MS`, and not again before it has
answered. Callers who gave up do not cause a second read.
"""

import asyncio
from collections.abc import Callable

from millpond.errors import MillpondError
from millpond.serving.http.served import Served

FRESH_MS = 1_000
"""How long an answer is used again."""


class Readiness:
    """Tells whether a fetcher is ready; for one event loop. One read of the store serves all who ask meanwhile."""

    def __init__(self, fetcher: Served, clock: Callable[[], int]) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._looked_ms: int | None = None
        self._problem: str | None = None
        self._looking: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """Return why the service cannot answer; None if it can."""
        now_ms = self._clock()
        if self._looking is None and (self._looked_ms is None or now_ms - self._looked_ms >= FRESH_MS):
            self._looked_ms = now_ms
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._looked)
        if self._looking is not None:
            return await asyncio.shield(self._looking)
        return self._problem

    def _looked(self, looking: "asyncio.Task[str | None]") -> None:
        self._looking = None
        if looking.cancelled() or looking.exception() is not None:
            self._looked_ms = None
        else:
            self._problem = looking.result()

    async def _look(self) -> str | None:
        try:
            infos = await self._fetcher.refresh_async()
        except MillpondError as error:
            return str(error)
        missing = sorted(name for name, info in infos.items() if info is None)
        return f"no batch has been uploaded of {', '.join(missing)}." if missing else None
