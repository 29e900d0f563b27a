"""The calls that a process is answering: how many there are, and which have taken too long.

Invariant: a call ends by its deadline, whatever it waits for. Trade-off: a timer per call costs more than
the rest of its bookkeeping. So one timer checks all calls eight times per time-out, and a call may take an
eighth longer.
"""

import asyncio
from collections.abc import Callable

_LOOKS_PER_TIMEOUT = 8


class Calls:
    """The tasks that answer calls; for one event loop.

    `expired` holds the tasks that were cancelled at their deadline.
    """

    def __init__(self, timeout_ms: int, clock: Callable[[], int]) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._deadlines: dict[asyncio.Task[object], int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.expired: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._deadlines)

    def begin(self, task: asyncio.Task[object]) -> None:
        """Begin to watch a call."""
        self._deadlines[task] = self._clock() + self._timeout_ms
        if self._timer is None:
            self._arm()

    def end(self, task: asyncio.Task[object]) -> None:
        """Stop watching a call."""
        self._deadlines.pop(task, None)
        if self.expired:
            self.expired.discard(task)

    def look(self) -> None:
        """Cancel the calls whose deadline has passed."""
        now_ms = self._clock()
        for task, deadline in self._deadlines.items():
            if deadline <= now_ms and task not in self.expired:
                self.expired.add(task)
                task.cancel()

    def _arm(self) -> None:
        delay = self._timeout_ms / 1_000 / _LOOKS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.look()
        if self._deadlines:
            self._arm()
