"""When a full cache is loaded again.

A trigger is opened with a context through which it sees the time and asks for a reload; it never
touches the table itself. The invariant: after `close` it asks no more, and reloads never overlap.

Source: FLIP-221, `CacheReloadTrigger` and `PeriodicCacheReloadTrigger`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, Protocol, TypeAlias

from millpond.errors import OptionError

ScheduleMode: TypeAlias = Literal["FIXED_DELAY", "FIXED_RATE"]
CallLater: TypeAlias = Callable[[int, Callable[[], None]], Callable[[], None]]
"""Runs an action after so many milliseconds; returns what cancels it."""


class ReloadContext(Protocol):
    """What a trigger sees of the table."""

    def current_processing_time_ms(self) -> int:
        """The clock that the table goes by."""

    def trigger_reload(self) -> Future[None]:
        """Reload now; the future ends when the reload does, also when it failed."""


class CacheReloadTrigger(Protocol):
    """Decides when to reload."""

    def open(self, context: ReloadContext) -> None:
        """Begin, after the first load."""

    def close(self) -> None:
        """End; safe to call twice."""


def call_later(delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
    """Run `action` on a daemon thread in `delay_ms`; returns what cancels it."""
    timer = threading.Timer(delay_ms / 1_000, action)
    timer.daemon = True
    timer.start()
    return timer.cancel


class PeriodicCacheReloadTrigger:
    """Reloads every so often.

    Args:
        interval_ms: milliseconds between reloads.
        schedule_mode: `"FIXED_DELAY"` counts from the end of the last reload, `"FIXED_RATE"` from
            its start; a reload that takes longer than the interval is followed by the next at once.
        later: runs an action after a delay.
    """

    def __init__(
        self, interval_ms: int, schedule_mode: ScheduleMode = "FIXED_DELAY", later: CallLater = call_later
    ) -> None:
        if interval_ms <= 0:
            raise OptionError(f"reload interval: expected at least 1 ms, got {interval_ms}")
        self._interval_ms = interval_ms
        self._schedule_mode = schedule_mode
        self._later = later
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._context: ReloadContext | None = None

    def open(self, context: ReloadContext) -> None:
        """Set the first reload one interval from now."""
        self._context = context
        self._set(self._interval_ms)

    def close(self) -> None:
        """Cancel the next reload."""
        with self._lock:
            self._context = None
            if self._cancel is not None:
                self._cancel()
                self._cancel = None

    def _set(self, delay_ms: int) -> None:
        with self._lock:
            if self._context is not None:
                self._cancel = self._later(delay_ms, self._fire)

    def _fire(self) -> None:
        context = self._context
        if context is None:
            return
        started_ms = context.current_processing_time_ms()

        def ended(_: Future[None]) -> None:
            took_ms = context.current_processing_time_ms() - started_ms
            rest_ms = self._interval_ms - took_ms if self._schedule_mode == "FIXED_RATE" else self._interval_ms
            self._set(max(rest_ms, 0))

        context.trigger_reload().add_done_callback(ended)
