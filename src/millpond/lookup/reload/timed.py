"""Reloads a full cache at a time of day.

The invariant: reloads are whole calendar days apart, so "at 02:30" stays 02:30 by the local clock, also across
changes to and from summer time. (Flink counts 24 hours from reload to reload.) A time that a clock change skips
means an hour later. Of a time that comes twice, the first counts.

The trigger waits at most an hour at a time and then reads the clock again. So a reload stays on time even if the
clock is set, or the machine sleeps.

Source: FLIP-221, `TimedCacheReloadTrigger`.
"""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from millpond.errors import OptionError
from millpond.lookup.reload.trigger import Alarm, CallLater, ReloadContext, call_later

_LONGEST_WAIT_MS = 3_600_000


class TimedCacheReloadTrigger:
    """Reloads at a time of day, every day or every few days.

    Args:
        reload_time: the time; without a zone it is the local time of this process.
        interval_days: the days between two reloads. The first reload is at the next such time, today or tomorrow.
        later: runs an action after a delay.

    Raises:
        OptionError: the interval is less than a day.

    >>> TimedCacheReloadTrigger(time(2, 30), interval_days=0)
    Traceback (most recent call last):
    millpond.errors.OptionError: timed reload, interval in days: expected at least 1, got 0
    """

    def __init__(self, reload_time: time, interval_days: int = 1, later: CallLater = call_later) -> None:
        if interval_days < 1:
            raise OptionError(f"timed reload, interval in days: expected at least 1, got {interval_days}")
        self._reload_time = reload_time
        self._interval_days = interval_days
        self._later = later
        self._alarm = Alarm(later)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._reload_time, self._interval_days, self._later)

    def open(self, context: ReloadContext) -> None:
        """Schedule the first reload for the next such time."""
        self._alarm.open()
        now_ms = context.current_processing_time_ms()
        today = self._day(now_ms)
        day = today if self._at_ms(today) > now_ms else today + timedelta(days=1)
        self._wait(context, day, now_ms)

    def close(self) -> None:
        """Cancel the next reload."""
        self._alarm.close()

    def _wait(self, context: ReloadContext, day: date, now_ms: int) -> None:
        rest_ms = self._at_ms(day) - now_ms
        self._alarm.set(min(rest_ms, _LONGEST_WAIT_MS), lambda: self._wake(context, day))

    def _wake(self, context: ReloadContext, day: date) -> None:
        now_ms = context.current_processing_time_ms()
        if now_ms < self._at_ms(day):
            self._wait(context, day, now_ms)
            return

        def ended(_: object) -> None:
            now_ms = context.current_processing_time_ms()
            next_day = day + timedelta(days=self._interval_days)
            while self._at_ms(next_day) <= now_ms:
                next_day += timedelta(days=self._interval_days)
            self._wait(context, next_day, now_ms)

        context.trigger_reload().add_done_callback(ended)

    def _day(self, now_ms: int) -> date:
        now = datetime.fromtimestamp(now_ms / 1_000, UTC)
        return now.astimezone(self._reload_time.tzinfo).date()  # None is the local zone

    def _at_ms(self, day: date) -> int:
        return int(datetime.combine(day, self._reload_time).timestamp() * 1_000)


def parse_iso_time(text: str) -> time:
    """Parse a time of day in ISO 8601, with or without an offset. A `ValueError` says what is expected.

    >>> parse_iso_time("10:15"), parse_iso_time("10:15:30+01:00").utcoffset()
    (datetime.time(10, 15), datetime.timedelta(seconds=3600))
    """
    try:
        if ":" in text:
            return time.fromisoformat(text.strip())
    except ValueError:
        pass
    raise ValueError("a time of day in ISO 8601, such as '10:15', '10:15:30' or '10:15+01:00'")
