"""Triggers, which decide when a full cache is reloaded: the interface, and the periodic trigger.

A trigger is opened with a context, which tells it the time and the watermark, and takes its requests for reloads.
It never touches the table itself. The invariant: after `close` it requests no reload. Reloads never overlap,
because the next one is scheduled when the last has ended.

Source: FLIP-221, `CacheReloadTrigger` and `PeriodicCacheReloadTrigger`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeAlias

from millpond.errors import OptionError

ScheduleMode: TypeAlias = Literal["FIXED_DELAY", "FIXED_RATE"]
CallLater: TypeAlias = Callable[[int, Callable[[], None]], Callable[[], None]]
"""Runs an action after a delay in milliseconds. Returns a function that cancels it."""


class ReloadContext(Protocol):
    """The table as a trigger sees it. Every method may be called from any thread."""

    def current_processing_time_ms(self) -> int:
        """Return the time of day, in ms since 1970 UTC."""

    def current_watermark_ms(self) -> int | None:
        """Return the query's last watermark, in ms since 1970 UTC; None before the first, or without a query."""

    def trigger_reload(self) -> Future[None]:
        """Request a reload, which runs in a thread of its own.

        The future completes with the reload. If that failed, the future has the error, and the last good table stays.
        """


class CacheReloadTrigger(Protocol):
    """Decides when to reload. Your own trigger needs these two methods, and must be picklable for use on Spark."""

    def open(self, context: ReloadContext) -> None:
        """Start. Called after the first load."""

    def close(self) -> None:
        """Stop. May be called twice."""


def call_later(delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
    """Run `action` in a daemon thread after `delay_ms`. Return a function that cancels it."""
    timer = threading.Timer(delay_ms / 1_000, action)
    timer.daemon = True
    timer.start()
    return timer.cancel


class Alarm:
    """A timer for triggers: at most one action is scheduled, and none runs after `close`."""

    def __init__(self, later: CallLater) -> None:
        self._later = later
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._open = False

    def open(self) -> None:
        """Allow actions to be scheduled."""
        with self._lock:
            self._open = True

    def set(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` after `delay_ms`, unless it is closed before."""
        with self._lock:
            if self._open:
                self._cancel = self._later(max(delay_ms, 0), lambda: self._run(action))

    def close(self) -> None:
        """Cancel the scheduled action and allow no more."""
        with self._lock:
            self._open = False
            if self._cancel is not None:
                self._cancel()
                self._cancel = None

    def _run(self, action: Callable[[], None]) -> None:
        with self._lock:
            is_open = self._open
        if is_open:
            action()


class PeriodicCacheReloadTrigger:
    """Reloads at a fixed interval.

    Args:
        interval_ms: milliseconds between reloads.
        schedule_mode: `"FIXED_DELAY"` counts the interval from the end of the last reload, `"FIXED_RATE"` from
            the time it was due. After a reload longer than the interval, the next follows at once, and the
            others that were due meanwhile are skipped.
        later: runs an action after a delay.

    Raises:
        OptionError: the interval is below 1 ms, or the mode is unknown.

    >>> PeriodicCacheReloadTrigger(0)
    Traceback (most recent call last):
    millpond.errors.OptionError: reload interval: expected at least 1 ms, got 0
    """

    def __init__(
        self, interval_ms: int, schedule_mode: ScheduleMode = "FIXED_DELAY", later: CallLater = call_later
    ) -> None:
        if interval_ms <= 0:
            raise OptionError(f"reload interval: expected at least 1 ms, got {interval_ms}")
        if schedule_mode not in ("FIXED_DELAY", "FIXED_RATE"):
            raise OptionError(f"schedule mode: expected 'FIXED_DELAY' or 'FIXED_RATE', got {schedule_mode!r}")
        self._interval_ms = interval_ms
        self._schedule_mode = schedule_mode
        self._later = later
        self._alarm = Alarm(later)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._interval_ms, self._schedule_mode, self._later)

    def open(self, context: ReloadContext) -> None:
        """Schedule the first reload after one interval."""
        self._alarm.open()
        due_ms = context.current_processing_time_ms() + self._interval_ms
        self._alarm.set(self._interval_ms, lambda: self._fire(context, due_ms))

    def close(self) -> None:
        """Cancel the next reload."""
        self._alarm.close()

    def _fire(self, context: ReloadContext, due_ms: int) -> None:
        def ended(_: Future[None]) -> None:
            now_ms = context.current_processing_time_ms()
            rate = self._schedule_mode == "FIXED_RATE"
            next_ms = max(due_ms + self._interval_ms, now_ms) if rate else now_ms + self._interval_ms
            self._alarm.set(min(next_ms - now_ms, self._interval_ms), lambda: self._fire(context, next_ms))

        context.trigger_reload().add_done_callback(ended)
