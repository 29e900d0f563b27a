"""Packed columns are what MessagePack writes of the same values one by one."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.stored.packed_columns import list_header, packed_ints, suffix_sums

BORDERS = [border + step for border in (1 << 7, 1 << 8, 1 << 16, 1 << 32, (1 << 63) - 2) for step in (-1, 0, 1)]
NUMBERS = st.sampled_from([0, *BORDERS]) | st.integers(0, (1 << 63) - 1)


@given(st.lists(NUMBERS, max_size=20), st.data())
def test_numbers_are_packed_as_one_by_one(numbers, data):
    packed = packed_ints(np.array(numbers, np.int64))
    start = data.draw(st.integers(0, len(numbers)))
    bounds = np.array([0, start, len(numbers)])
    runs = [numbers[:start], numbers[start:]]
    assert packed.runs(bounds) == [b"".join(map(msgspec.msgpack.encode, run)) for run in runs]


def test_a_list_of_any_length_has_its_header():
    for length in (0, 1, 15, 16, 65_535, 65_536):
        assert list_header(length) + msgspec.msgpack.encode(1) * length == msgspec.msgpack.encode([1] * length)


@given(st.lists(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=5), min_size=1, max_size=5))
def test_suffix_sums_stay_within_their_run(runs):
    bounds = np.cumsum([0, *map(len, runs)])
    found = suffix_sums(np.array([number for run in runs for number in run], np.int64), bounds)
    assert found.tolist() == [sum(run[place:]) for run in runs for place in range(len(run))]
