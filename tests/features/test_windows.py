from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS, hop_ms, in_window, parse_window, tile_start
from millpond.features.windows import HOPS_MS, window_start

MARK_MS = 5 * MINUTE_MS
TIMES = st.integers(-(10**13), 10**13)
WINDOWS = st.integers(1, 60 * 24 * 60).map(lambda minutes: minutes * MINUTE_MS)


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [("1m", MINUTE_MS), ("5m", 5 * MINUTE_MS), ("1h", HOUR_MS), ("24h", DAY_MS), ("1d", DAY_MS), ("30d", 30 * DAY_MS)],
)
def test_windows_are_written_as_a_number_and_a_unit(text, length_ms):
    assert parse_window(text) == length_ms


@pytest.mark.parametrize("text", ["", "1", "h", "1.5h", "-1h", "01h", "1h ", "1D", "1s", None, 60_000])
def test_any_other_writing_is_refused(text):
    with pytest.raises(OptionError, match="m, h or d"):
        parse_window(text)


@pytest.mark.parametrize(
    ("window", "hop"),
    [
        ("5m", MINUTE_MS),
        ("59m", MINUTE_MS),
        ("1h", 5 * MINUTE_MS),
        ("719m", 5 * MINUTE_MS),
        ("12h", HOUR_MS),
        ("287h", HOUR_MS),
        ("288h", DAY_MS),
        ("12d", DAY_MS),
        ("365d", DAY_MS),
    ],
)
def test_the_hop_grows_at_one_hour_twelve_hours_and_twelve_days(window, hop):
    assert hop_ms(parse_window(window)) == hop


@pytest.mark.parametrize(
    ("window", "query", "first"),
    [
        ("1h", 10 * HOUR_MS, 9 * HOUR_MS),
        ("1h", 10 * HOUR_MS + MARK_MS - 1, 9 * HOUR_MS),
        ("1h", 10 * HOUR_MS + MARK_MS, 9 * HOUR_MS + MARK_MS),
        ("1d", 3 * DAY_MS + HOUR_MS - 1, 2 * DAY_MS),
        ("30d", 31 * DAY_MS - 1, 0),
        ("30d", 31 * DAY_MS, DAY_MS),
    ],
)
def test_the_far_end_steps_in_hops_and_is_included(window, query, first):
    window_ms = parse_window(window)
    assert in_window(first, query, window_ms)
    assert not in_window(first - 1, query, window_ms)


@given(TIMES, WINDOWS | st.none())
def test_the_near_end_is_exact_and_excluded(query, window):
    assert in_window(query - 1, query, window)
    assert not in_window(query, query, window)


@given(TIMES, TIMES)
def test_without_a_window_all_time_before_the_query_counts(event, query):
    assert in_window(event, query, None) == (event < query)


@given(TIMES, WINDOWS, WINDOWS)
def test_a_longer_window_never_starts_after_a_shorter_one(query, one, other):
    shorter, longer = sorted((one, other))
    assert window_start(query, longer) <= window_start(query, shorter)


@given(TIMES, WINDOWS)
def test_a_window_starts_where_a_tile_starts(query, window):
    start = window_start(query, window)
    assert tile_start(start, hop_ms(window)) == start
    assert query - window - hop_ms(window) < start <= query - window


def test_each_hop_divides_the_next():
    assert all(larger % smaller == 0 for smaller, larger in pairwise(HOPS_MS))


@pytest.mark.parametrize(
    ("written", "mended"),
    [
        ("30s", "the smallest window is one minute, write '1m'"),
        ("500ms", "the smallest window is one minute, write '1m'"),
        ("120s", "write it like '2m'"),
        ("90s", "write it like '2m'"),
        ("1.5h", "write it like '90m'"),
        ("1w", "write it like '7d'"),
        ("2min", "write it like '2m'"),
        ("7", "write it like '7h'"),
        ("d7", "write it like '7d'"),
        ("0m", "write it like '1m'"),
        ("", "write it like '1h'"),
        (None, "write it like '1h'"),
    ],
)
def test_a_malformed_window_is_refused_with_how_to_write_it(written, mended):
    with pytest.raises(OptionError) as refused:
        parse_window(written)
    assert mended in str(refused.value)
