"""Grouping by Arrow gives what grouping tuples in a dictionary gives."""

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.spark.forms.grouping import grouped
from millpond.state.types.rows import grouping_values

_KEYS = st.tuples(
    st.one_of(st.none(), st.sampled_from(["", "a", "b", "é"])),
    st.one_of(st.none(), st.integers(-2, 2)),
    st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, math.inf])),
)


def _plain(table):
    """The oracle: one dictionary."""
    keys = list(zip(*(grouping_values(column) for column in table.columns), strict=True))
    numbers = {}
    index = [numbers.setdefault(key, len(numbers)) for key in keys]
    return index, [index.index(number) for number in range(len(numbers))]


@given(st.lists(_KEYS, max_size=40), st.integers(1, 3), st.integers(1, 3))
def test_rows_are_grouped_as_by_a_dictionary_of_tuples(keys, columns, chunks):
    kinds = [pa.string(), pa.int64(), pa.float64()]
    whole = pa.table({str(at): pa.array([key[at] for key in keys], type=kinds[at]) for at in range(columns)})
    size = max(1, -(-len(keys) // chunks))
    table = pa.concat_tables([whole.slice(first, size) for first in range(0, max(1, len(keys)), size)])
    found = grouped(table)
    assert (found.index.tolist(), found.first.tolist()) == _plain(table)
    assert found.distinct == (len(set(found.index.tolist())) == len(keys))
    order, ends = found.by_key()
    assert order.tolist() == sorted(range(len(keys)), key=lambda row: (found.index[row], row))
    assert np.diff(ends, prepend=0).tolist() == [found.index.tolist().count(at) for at in range(len(found.first))]


def test_nans_of_every_payload_are_one_key():
    patterns = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FFC000000000000]
    numbers = pa.array([struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in patterns])
    assert grouped(pa.table({"key": numbers})).index.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, None, True, False]),
        pa.array([1, None, 1, 2], type=pa.int8()),
        pa.array([b"a", None, b"a", b""]),
        pa.array([1, None, 1, 2], type=pa.date32()),
        pa.array([1, None, 1, 2], type=pa.timestamp("us", tz="UTC")),
        pa.array([1, None, 1, 2], type=pa.timestamp("us")),
        pa.array([1, None, 1, 2], type=pa.duration("us")),
        pa.array([1, None, 1, 2], type=pa.int32()).cast(pa.decimal128(20, 2)),
        pa.array([None, 1.5, None, 2.5], type=pa.float32()),
    ],
    ids=lambda column: str(column.type),
)
def test_every_atomic_type_can_be_a_key(column):
    found = grouped(pa.table({"key": column}))
    assert found.index.tolist() == [0, 1, 0, 2]
    assert found.first.tolist() == [0, 1, 3]
