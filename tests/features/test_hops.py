"""Hops of a history can make every batch row that its events can, now and at every later end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.batch import Timeline
from millpond.features.hops import BEFORE_MS, KEPT_DAYS_MS, Hops
from millpond.features.windows import DAY_MS, HOUR_MS, MINUTE_MS

E = 100 * DAY_MS
WINDOWS = st.lists(
    st.sampled_from((1, 15, 59, 60, 90, 200, 719, 720, 1000, 5 * 1440, 17279, 17280, 30 * 1440)), max_size=4
).map(lambda minutes: [minute * MINUTE_MS for minute in minutes])
TIMES = st.lists(st.integers(-DAY_MS, 45 * DAY_MS), min_size=1, max_size=30)
HOURS = st.integers(0, 72)


@given(WINDOWS, TIMES, HOURS)
def test_times_of_one_hop_are_in_one_segment_of_every_later_batch(windows, ages, hours):
    hops = Hops(windows, E)
    later = E + hours * HOUR_MS
    timeline = Timeline(windows, later % DAY_MS)
    for age in ages:
        time = E - 1 - max(0, age)
        start = hops.start(time)
        of_start = 0 if start == BEFORE_MS else timeline.segment(start - later)
        assert timeline.segment(time - later) == of_start


@given(WINDOWS, TIMES, HOURS)
def test_hops_for_a_later_end_are_unions_of_those_for_an_earlier_one(windows, ages, hours):
    former, hops = Hops(windows, E), Hops(windows, E + hours * HOUR_MS)
    for age in ages:
        time = E - 1 - max(0, age)
        start = former.start(time)
        assert (hops.start(start) if start != BEFORE_MS else BEFORE_MS) == hops.start(time)


@given(WINDOWS, TIMES)
def test_many_times_are_placed_as_each_is(windows, ages):
    hops = Hops(windows, E)
    times = [E - 1 - age for age in ages]
    assert hops.starts(np.array(times)).tolist() == list(map(hops.start, times))


@given(WINDOWS, st.integers(0, KEPT_DAYS_MS - 1))
def test_the_last_three_days_stay_apart(windows, age):
    hops = Hops(windows, E)
    time = E - 1 - age
    assert hops.start(time) // DAY_MS == time // DAY_MS
    assert hops.first_ms <= E - KEPT_DAYS_MS
