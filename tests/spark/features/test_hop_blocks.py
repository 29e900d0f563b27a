"""Blocks of days lie between the cuts of a batch, and no day is in two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features import DAY_MS, HOUR_MS, Aggregation, Field, GroupBy, compile_group_by, parse_window
from millpond.features.hops import KEPT_DAYS_MS, Hops
from millpond.spark.features.hops.blocks import Block, Blocks

B = 16_000 * DAY_MS


def history(windows, end_ms):
    plan = compile_group_by(GroupBy("visits", (Field("k", "string"),), (), (Aggregation("count", windows=windows),)))
    hops = Hops([parse_window(window) for window in windows if window], end_ms)
    return plan, hops, Blocks(plan, hops)


@given(
    windows=st.lists(st.sampled_from(("30m", "1h", "1d", "7d", "12d", "30d", "90d", "365d", None)), min_size=1),
    hours=st.integers(0, 24 * 100),
)
def test_a_block_without_a_cut_lies_in_one_segment_and_no_day_is_in_two(windows, hours):
    end_ms = B + hours * HOUR_MS
    plan, hops, blocks = history(tuple(dict.fromkeys(windows)), end_ms)
    days = [day for block in blocks.kept for day in block.days]
    assert days == sorted(set(days))
    for block in blocks.kept:
        assert block.start_ms % DAY_MS == block.end_ms % DAY_MS == 0
        assert hops.first_ms <= block.start_ms < block.end_ms <= end_ms
        segments = {plan.segment_of(time_ms, end_ms) for time_ms in (block.start_ms, block.end_ms - 1)}
        assert blocks.is_cut(block) == (len(segments) > 1)
        if len(block.days) > 1:
            assert len(segments) == 1
            assert block.end_ms <= end_ms - KEPT_DAYS_MS
            assert {hops.last_size(day) for day in block.days} == {DAY_MS}


@pytest.mark.parametrize(("windows", "most"), [(("7d", "30d"), 18), (("365d",), 50), (("30d", "365d"), 65)])
def test_few_blocks_and_days_make_up_a_long_window(windows, most):
    for number in range(40):
        _, hops, blocks = history(windows, B + number * DAY_MS)
        uncut = {block for block in blocks.kept if not blocks.is_cut(block)}
        in_blocks = {day for block in uncut for day in block.days}
        single = set(range(hops.first_ms, hops.end_ms, DAY_MS)) - in_blocks
        assert len(uncut) + len(single) <= most


def test_days_with_smaller_hops_are_blocks_of_their_own():
    _, hops, blocks = history(("7d",), B + HOUR_MS)
    assert blocks.kept == tuple(Block(day, day + DAY_MS) for day in range(hops.first_ms, B, DAY_MS))
    assert [blocks.is_cut(block) for block in blocks.kept] == [True] * 3 + [False] * 4
