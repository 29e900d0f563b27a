"""Reload triggers: what they ask for, and when, by a clock that the test moves."""

import pickle
from concurrent.futures import Future
from datetime import UTC, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.lookup import PeriodicCacheReloadTrigger, TimedCacheReloadTrigger

from .timer import Timer

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NEW_YORK = ZoneInfo("America/New_York")


def at_ms(*moment, zone=UTC):
    return int(datetime(*moment, tzinfo=zone).timestamp() * 1_000)


class Table:
    """A table whose reloads take no time, or some."""

    def __init__(self, timer, took_ms=0, error=None):
        self.timer, self.took_ms, self.error = timer, took_ms, error
        self.reloads = []

    def current_processing_time_ms(self):
        return self.timer.now_ms

    def current_watermark_ms(self):
        return None

    def trigger_reload(self):
        self.reloads.append(self.timer.now_ms)
        self.timer.now_ms += self.took_ms
        done = Future()
        if self.error is None:
            done.set_result(None)
        else:
            done.set_exception(self.error)
        return done


def reloads(trigger_of, start_ms, until_ms, **table):
    timer = Timer(start_ms)
    world = Table(timer, **table)
    trigger = trigger_of(timer.later)
    trigger.open(world)
    timer.move_to(until_ms)
    trigger.close()
    trigger.close()
    timer.move_to(until_ms + 30 * DAY_MS)
    assert timer.pending == []
    return world.reloads


@pytest.mark.parametrize(
    ("mode", "took_ms", "expected"),
    [
        ("FIXED_DELAY", 0, [100, 200, 300]),
        ("FIXED_DELAY", 30, [100, 230]),
        ("FIXED_RATE", 30, [100, 200, 300]),
        ("FIXED_RATE", 130, [100, 230]),
        ("FIXED_RATE", 99, [100, 200, 300]),
    ],
)
def test_a_delay_counts_from_the_end_and_a_rate_from_when_it_was_due(mode, took_ms, expected):
    found = reloads(lambda later: PeriodicCacheReloadTrigger(100, mode, later), 0, 350, took_ms=took_ms)
    assert found[: len(expected)] == expected
    assert len(found) <= len(expected) + 1


@given(
    took_ms=st.integers(0, 250), interval_ms=st.integers(1, 100), mode=st.sampled_from(["FIXED_DELAY", "FIXED_RATE"])
)
def test_reloads_never_overlap_and_never_come_early(took_ms, interval_ms, mode):
    timer = Timer(0)
    table = Table(timer, took_ms=took_ms)
    trigger = PeriodicCacheReloadTrigger(interval_ms, mode, timer.later)
    trigger.open(table)
    for _ in range(20):
        timer.move_to(timer.now_ms + interval_ms)
    gaps = [later - earlier for earlier, later in zip(table.reloads, table.reloads[1:], strict=False)]
    assert all(gap >= took_ms for gap in gaps)
    if mode == "FIXED_DELAY":
        assert all(gap >= took_ms + interval_ms for gap in gaps)
    else:
        assert all(start >= interval_ms * number for number, start in enumerate(table.reloads, 1))


def test_a_reload_that_failed_is_followed_by_the_next():
    found = reloads(lambda later: PeriodicCacheReloadTrigger(100, later=later), 0, 250, error=OSError("down"))
    assert found == [100, 200]


def test_a_clock_that_is_set_back_delays_a_periodic_reload_by_one_interval_at_most():
    timer = Timer(10 * DAY_MS)
    table = Table(timer)
    trigger = PeriodicCacheReloadTrigger(100, "FIXED_RATE", timer.later)
    trigger.open(table)
    timer.move_to(10 * DAY_MS + 100)
    timer.set_wall_clock(0)
    timer.move_to(timer.now_ms + 250)
    assert len(table.reloads) == 3


@pytest.mark.parametrize(
    ("reload_time", "start", "expected"),
    [
        (time(2, 30, tzinfo=UTC), (2013, 1, 1, 1), [(2013, 1, 1, 2, 30), (2013, 1, 2, 2, 30)]),
        (time(2, 30, tzinfo=UTC), (2013, 1, 1, 2, 30), [(2013, 1, 2, 2, 30), (2013, 1, 3, 2, 30)]),
        (time(2, 30, tzinfo=UTC), (2013, 1, 1, 3), [(2013, 1, 2, 2, 30), (2013, 1, 3, 2, 30)]),
        (
            time(2, 30, tzinfo=timezone(timedelta(hours=9))),
            (2013, 1, 1, 1),
            [(2013, 1, 1, 17, 30), (2013, 1, 2, 17, 30)],
        ),
    ],
)
def test_a_timed_reload_comes_at_the_next_such_time_and_every_day_after(reload_time, start, expected):
    start_ms = at_ms(*start)
    found = reloads(lambda later: TimedCacheReloadTrigger(reload_time, later=later), start_ms, start_ms + 2 * DAY_MS)
    assert found == [at_ms(*moment) for moment in expected]


def test_the_interval_is_in_days():
    start_ms = at_ms(2013, 1, 1)
    found = reloads(
        lambda later: TimedCacheReloadTrigger(time(6, tzinfo=UTC), 3, later), start_ms, start_ms + 8 * DAY_MS
    )
    assert found == [at_ms(2013, 1, day, 6) for day in (1, 4, 7)]


def test_a_time_of_day_stays_that_time_when_clocks_change():
    start_ms = at_ms(2013, 3, 9, 12)
    six = time(6, tzinfo=NEW_YORK)
    found = reloads(lambda later: TimedCacheReloadTrigger(six, later=later), start_ms, start_ms + 3 * DAY_MS)
    assert found == [at_ms(2013, 3, day, 6, zone=NEW_YORK) for day in (10, 11, 12)]
    assert found[0] - start_ms == 22 * HOUR_MS  # from 7:00 to 6:00, in a night that had an hour less


def test_a_time_that_a_clock_change_leaves_out_is_taken_once_and_an_hour_later():
    start_ms = at_ms(2013, 3, 10, 4)
    trigger = time(2, 30, tzinfo=NEW_YORK)
    found = reloads(lambda later: TimedCacheReloadTrigger(trigger, later=later), start_ms, start_ms + 30 * HOUR_MS)
    assert found == [at_ms(2013, 3, 10, 7, 30), at_ms(2013, 3, 11, 6, 30)]


def test_a_time_without_a_zone_is_local(monkeypatch):
    import time as clock

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.tzset()
    try:
        start_ms = at_ms(2013, 1, 1)
        found = reloads(lambda later: TimedCacheReloadTrigger(time(10), later=later), start_ms, start_ms + DAY_MS)
        assert found == [at_ms(2013, 1, 1, 1)]
    finally:
        monkeypatch.undo()
        clock.tzset()


def test_a_clock_that_jumps_forward_is_noticed_within_an_hour():
    timer = Timer(at_ms(2013, 1, 1))
    table = Table(timer)
    trigger = TimedCacheReloadTrigger(time(20, tzinfo=UTC), later=timer.later)
    trigger.open(table)
    timer.set_wall_clock(at_ms(2013, 1, 1, 21))
    timer.move_to(timer.now_ms + HOUR_MS)
    assert len(table.reloads) == 1
    trigger.close()


def test_a_reload_that_takes_days_leaves_out_what_was_due_meanwhile():
    start_ms = at_ms(2013, 1, 1)
    found = reloads(
        lambda later: TimedCacheReloadTrigger(time(6, tzinfo=UTC), later=later),
        start_ms,
        start_ms + 5 * DAY_MS,
        took_ms=2 * DAY_MS + HOUR_MS,
    )
    assert found == [at_ms(2013, 1, 1, 6), at_ms(2013, 1, 4, 6)]


@pytest.mark.parametrize(
    "trigger", [PeriodicCacheReloadTrigger(5, "FIXED_RATE"), TimedCacheReloadTrigger(time(2, 30, tzinfo=UTC), 2)]
)
def test_a_trigger_travels_to_another_process(trigger):
    trigger.open(Table(Timer(0)))
    trigger.close()
    assert pickle.loads(pickle.dumps(trigger)).__reduce__()[1] == trigger.__reduce__()[1]


def test_bad_triggers_are_refused():
    with pytest.raises(OptionError, match="at least 1 ms, got 0"):
        PeriodicCacheReloadTrigger(0)
    with pytest.raises(OptionError, match="'FIXED_DELAY' or 'FIXED_RATE', got 'SOMETIMES'"):
        PeriodicCacheReloadTrigger(1, "SOMETIMES")
    with pytest.raises(OptionError, match="at least 1, got 0"):
        TimedCacheReloadTrigger(time(1), 0)
