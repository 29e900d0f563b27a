"""Stored cells of many hops are merged by column as the operations merge them one by one."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.cells.counts_and_sums import count_cells, sum_cells, to_fixed_point
from millpond.features.cells.extremes import min_cells
from millpond.features.plan import suffixes
from millpond.features.types import parse_type
from millpond.spark.features.hops.cells import decode_cells, encode_cells, merged_stored, packed_suffixes

DOUBLE = parse_type("double")
COUNTS = st.one_of(st.integers(0, 127), st.integers(0, 1 << 40))
SUMS = st.sampled_from([0.0, 0.1, -0.1, 3.5, -1e300, 1e300, 5e-324]).map(to_fixed_point)
OPERATIONS = {
    "count": (count_cells(None), COUNTS),
    "sum": (sum_cells(DOUBLE), SUMS),
    "min": (min_cells(DOUBLE), st.floats(-9, 9)),
}


@st.composite
def runs_of_groups(draw, cells):
    """Keys that have groups that have cells."""
    group = st.lists(cells, min_size=1, max_size=3)
    return draw(st.lists(st.lists(group, min_size=1, max_size=3), min_size=1, max_size=4))


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
def test_merged_cells_and_their_suffixes_are_those_of_one_by_one(name, data):
    operation, cells = OPERATIONS[name]
    keys = data.draw(runs_of_groups(cells))
    groups = [group for key in keys for group in key]
    flat = [cell for group in groups for cell in group]
    shuffled = data.draw(st.permutations(range(len(flat))))
    stored = encode_cells(operation, [flat[place] for place in shuffled])
    order = np.argsort(shuffled)
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    merged = [operation.merge_all(group) if len(group) > 1 else group[0] for group in groups]

    assert merged_stored(operation, stored, order, starts).to_pylist() == encode_cells(operation, merged).to_pylist()

    bounds = np.cumsum([0, *map(len, keys)])
    columns = [suffixes(operation.merge, merged[start:end]) for start, end in pairwise(bounds.tolist())]
    expected = [b"".join(encode_cells(operation, column).to_pylist()) for column in columns]
    assert packed_suffixes(operation, stored, order, starts, bounds) == expected


def test_counts_of_one_byte_and_of_more_are_read_alike():
    count = count_cells(None)
    for counts in ([1, 127], [1, 128], [70_000, 0]):
        stored = encode_cells(count, counts)
        assert merged_stored(count, stored, np.array([0, 1]), np.array([0])).to_pylist() == [
            msgspec.msgpack.encode(sum(counts))
        ]
        assert decode_cells(count, stored) == counts
