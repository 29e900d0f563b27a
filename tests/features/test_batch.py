from datetime import UTC, date, datetime

import pytest

from millpond.errors import OptionError
from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS
from millpond.features.batch import BatchIr, Timeline, check_batch_end

MARK_MS = 5 * MINUTE_MS


def test_a_timeline_is_cut_wherever_a_window_may_start_in_two_days():
    assert Timeline([30 * DAY_MS]).cuts_ms == (-30 * DAY_MS, -29 * DAY_MS, -28 * DAY_MS)
    week = Timeline([7 * DAY_MS]).cuts_ms
    assert (week[0], week[-1], len(week)) == (-7 * DAY_MS, -5 * DAY_MS, 49)
    hour = Timeline([HOUR_MS]).cuts_ms
    assert (hour[0], hour[-1], len(hour)) == (-HOUR_MS, -MARK_MS, 12)


def test_windows_share_their_cuts():
    both = Timeline([HOUR_MS, 6 * HOUR_MS])
    assert both.cuts_ms == Timeline([6 * HOUR_MS]).cuts_ms


def test_segments_are_numbered_from_before_the_oldest_cut():
    timeline = Timeline([2 * MINUTE_MS])
    offsets = (-(10**9), -2 * MINUTE_MS - 1, -2 * MINUTE_MS, -MINUTE_MS, -1)
    assert [timeline.segment(offset) for offset in offsets] == [
        0,
        0,
        1,
        2,
        2,
    ]


def test_without_windows_there_is_one_segment():
    assert Timeline([]).cuts_ms == ()
    assert Timeline([]).segment(-1) == 0


def test_hops_are_counted_from_midnight_wherever_the_batch_ends():
    at_five = Timeline([30 * DAY_MS], phase_ms=5 * HOUR_MS)
    assert at_five.cuts_ms == tuple(days * DAY_MS - 5 * HOUR_MS for days in (-30, -29, -28))


def test_a_position_is_that_of_the_first_segment_that_has_events():
    batch = BatchIr(0, (2, 5), ((7, 3),))
    assert [batch.position(segment) for segment in (0, 2, 3, 5, 6)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("wrong", [1, DAY_MS - 1, -1, DAY_MS + HOUR_MS])
def test_a_batch_ends_at_midnight(wrong):
    with pytest.raises(OptionError, match=f"is not a midnight UTC .* the one before it is {wrong // DAY_MS * DAY_MS}"):
        check_batch_end(wrong)


@pytest.mark.parametrize("wrong", [1, HOUR_MS - 1, HOUR_MS + 5 * MINUTE_MS, 1.0, None])
def test_a_batch_of_small_tiles_ends_at_a_full_hour(wrong):
    check_batch_end(7 * HOUR_MS, MINUTE_MS)
    with pytest.raises(OptionError, match="full hour"):
        check_batch_end(wrong, 5 * MINUTE_MS)


@pytest.mark.parametrize(
    ("wrong", "mend"),
    [
        (1_795_651_200, "looks like seconds: multiply it by 1000"),
        (datetime(2026, 11, 27, tzinfo=UTC), r"expected an int: pass int\(moment.timestamp\(\) \* 1000\)"),
        (date(2026, 11, 27), r"expected an int: pass int\(datetime\(2026, 1, 31, tzinfo=UTC\).timestamp\(\) \* 1000\)"),
        ("2026-11-27", r"expected an int: pass int\(datetime\("),
        (1_795_651_200_001, "the one before it is 1795651200000"),
    ],
)
def test_a_batch_end_in_another_unit_or_type_is_refused_with_how_to_write_it(wrong, mend):
    with pytest.raises(OptionError, match=mend):
        check_batch_end(wrong, 5 * MINUTE_MS)
