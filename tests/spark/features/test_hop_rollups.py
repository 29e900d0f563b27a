"""Rollups of days lie between the cuts of a batch, and no day is in two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features import DAY_MS, HOUR_MS, Aggregation, Field, GroupBy, compile_group_by, parse_window
from millpond.features.hops import KEPT_DAYS_MS, Hops
from millpond.spark.features.hops.rollups import Rollup, Rollups

B = 16_000 * DAY_MS


def history(windows, end_ms):
    plan = compile_group_by(GroupBy("visits", (Field("k", "string"),), (), (Aggregation("count", windows=windows),)))
    hops = Hops([parse_window(window) for window in windows if window], end_ms)
    return plan, hops, Rollups(plan, hops)


@given(
    windows=st.lists(st.sampled_from(("30m", "1h", "1d", "7d", "12d", "30d", "90d", "365d", None)), min_size=1),
    hours=st.integers(0, 24 * 100),
)
def test_a_rollup_without_a_cut_lies_in_one_segment_and_no_day_is_in_two(windows, hours):
    end_ms = B + hours * HOUR_MS
    plan, hops, rollups = history(tuple(dict.fromkeys(windows)), end_ms)
    days = [day for rollup in rollups.kept for day in rollup.days]
    assert days == sorted(set(days))
    for rollup in rollups.kept:
        assert rollup.start_ms % DAY_MS == rollup.end_ms % DAY_MS == 0
        assert hops.first_ms <= rollup.start_ms < rollup.end_ms <= end_ms
        segments = {plan.segment_of(time_ms, end_ms) for time_ms in (rollup.start_ms, rollup.end_ms - 1)}
        assert rollups.is_cut(rollup) == (len(segments) > 1)
        if len(rollup.days) > 1:
            assert len(segments) == 1
            assert rollup.end_ms <= end_ms - KEPT_DAYS_MS
            assert {hops.last_size(day) for day in rollup.days} == {DAY_MS}


@pytest.mark.parametrize(("windows", "most"), [(("7d", "30d"), 18), (("365d",), 50), (("30d", "365d"), 65)])
def test_few_rollups_and_days_make_up_a_long_window(windows, most):
    for number in range(40):
        _, hops, rollups = history(windows, B + number * DAY_MS)
        uncut = {rollup for rollup in rollups.kept if not rollups.is_cut(rollup)}
        in_rollups = {day for rollup in uncut for day in rollup.days}
        single = set(range(hops.first_ms, hops.end_ms, DAY_MS)) - in_rollups
        assert len(uncut) + len(single) <= most


def test_days_with_smaller_hops_are_rollups_of_their_own():
    _, hops, rollups = history(("7d",), B + HOUR_MS)
    assert rollups.kept == tuple(Rollup(day, day + DAY_MS) for day in range(hops.first_ms, B, DAY_MS))
    assert [rollups.is_cut(rollup) for rollup in rollups.kept] == [True] * 3 + [False] * 4
