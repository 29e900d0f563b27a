import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.features.point_in_time.range_extremes import range_extremes


@settings(max_examples=100)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.data())
def test_every_range_has_the_extreme_of_its_values(values, data):
    place = st.integers(0, len(values) - 1)
    ranges = data.draw(st.lists(st.tuples(place, place).map(sorted), max_size=20))
    low = np.array([start for start, _ in ranges], np.int64)
    high = np.array([end + 1 for _, end in ranges], np.int64)
    column = np.array(values, np.int64)
    assert range_extremes(column, low, high, "min").tolist() == [min(values[a : b + 1]) for a, b in ranges]
    assert range_extremes(column, low, high, "max").tolist() == [max(values[a : b + 1]) for a, b in ranges]


def test_empty_ranges_disturb_no_others():
    column = np.array([2.5, 1.5])
    low, high = np.array([1, 0, 2]), np.array([1, 2, 2])
    assert range_extremes(column, low, high, "min")[1] == 1.5
    assert range_extremes(column[:0], np.array([0]), np.array([0]), "max").tolist() == [0.0]
