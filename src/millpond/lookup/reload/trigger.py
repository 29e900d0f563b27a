"""When a full cache is loaded again: the interface, and the trigger that reloads every so often.

A trigger is opened with a context through which it sees the time, the watermark, and asks for a
reload; it never touches the table itself. The invariant: after `close` it asks no more, and reloads
never overlap, because the next is set when the last has ended.

Source: FLIP-221, `CacheReloadTrigger` and `PeriodicCacheReloadTrigger`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeAlias

from millpond.errors import OptionError

ScheduleMode: TypeAlias = Literal["FIXED_DELAY", "FIXED_RATE"]
CallLater: TypeAlias = Callable[[int, Callable[[], None]], Callable[[], None]]
"""Runs an action after so many milliseconds; returns what cancels it."""


class ReloadContext(Protocol):
    """What a trigger sees of the table; every method may be called from any thread."""

    def current_processing_time_ms(self) -> int:
        """The time of day, in ms since 1970 UTC."""

    def current_watermark_ms(self) -> int | None:
        """The query's last watermark, in ms since 1970 UTC; None before the first, and where there is no query."""

    def trigger_reload(self) -> Future[None]:
        """Ask for a reload, which runs in a thread of the table's own.

        The future ends when the reload has; where that failed, it has the error, and the table is still
        the last good one.
        """


class CacheReloadTrigger(Protocol):
    """Decides when to reload. One of your own needs these two methods, and must be picklable to be used on Spark."""

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


class Alarm:
    """What triggers are made of: at most one action set for later, and none after `close`."""

    def __init__(self, later: CallLater) -> None:
        self._later = later
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._open = False

    def open(self) -> None:
        """From now on actions may be set."""
        with self._lock:
            self._open = True

    def set(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`, unless closed until then."""
        with self._lock:
            if self._open:
                self._cancel = self._later(max(delay_ms, 0), lambda: self._run(action))

    def close(self) -> None:
        """Cancel what is set."""
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
    """Reloads every so often.

    Args:
        interval_ms: milliseconds between reloads.
        schedule_mode: `"FIXED_DELAY"` counts from the end of the last reload, `"FIXED_RATE"` from
            when it was due; a reload that takes longer than the interval is followed by the next at
            once, and what was due meanwhile is left out.
        later: runs an action after a delay.

    Raises:
        OptionError: an interval below 1 ms, or another mode.

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
        """Set the first reload one interval from now."""
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
