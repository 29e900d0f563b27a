import pytest

from millpond.errors import OptionError
from millpond.features import DAY_MS, HOUR_MS, TILE_MS
from millpond.features.batch import BatchIr, Timeline, check_batch_end


def test_a_timeline_is_cut_wherever_a_window_may_start_in_two_days():
    assert Timeline([30 * DAY_MS]).cuts_ms == (-30 * DAY_MS, -29 * DAY_MS, -28 * DAY_MS)
    week = Timeline([7 * DAY_MS]).cuts_ms
    assert (week[0], week[-1], len(week)) == (-7 * DAY_MS, -5 * DAY_MS, 49)
    hour = Timeline([HOUR_MS]).cuts_ms
    assert (hour[0], hour[-1], len(hour)) == (-HOUR_MS, -TILE_MS, 12)


def test_windows_share_their_cuts():
    both = Timeline([HOUR_MS, 6 * HOUR_MS])
    assert both.cuts_ms == Timeline([6 * HOUR_MS]).cuts_ms


def test_segments_are_numbered_from_before_the_oldest_cut():
    timeline = Timeline([2 * TILE_MS])
    assert [timeline.segment(offset) for offset in (-(10**9), -2 * TILE_MS - 1, -2 * TILE_MS, -TILE_MS, -1)] == [
        0,
        0,
        1,
        2,
        2,
    ]


def test_without_windows_there_is_one_segment():
    assert Timeline([]).cuts_ms == ()
    assert Timeline([]).segment(-1) == 0


def test_a_suffix_begins_at_the_first_segment_that_has_events():
    batch = BatchIr(0, (2, 5), ((7,), (3,)))
    assert [batch.since(segment) for segment in (0, 2, 3, 5, 6)] == [(7,), (7,), (3,), (3,), None]


@pytest.mark.parametrize("wrong", [1, DAY_MS - 1, -1, DAY_MS + HOUR_MS])
def test_a_batch_ends_at_midnight(wrong):
    with pytest.raises(OptionError, match=f"midnight before it is {wrong // DAY_MS * DAY_MS}"):
        check_batch_end(wrong)
