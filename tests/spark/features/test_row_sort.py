"""Sorted rows, in memory and by buckets on disk, against Python's own sort."""

from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.spark.features.row_sort import RowSort


def hashes(collide):
    """Of few values, so that keys meet."""
    return {key: (number % collide) * (1 << 60) - (1 << 62) for number, key in enumerate("abcdefgh")}


def table_of(rows):
    schema = pa.schema(
        [
            ("hash", pa.int64()),
            ("key", pa.string()),
            ("time", pa.int64()),
            ("query", pa.bool_()),
            ("number", pa.int64()),
        ]
    )
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 5, schema=schema)


def batches_of(rows, size):
    return table_of(rows).to_batches(max_chunksize=size)


ROW_BYTES = 30


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(-5, 30), st.booleans()), max_size=60),
    st.sampled_from([8, 3]),
    st.integers(1, 140),
    st.integers(1, 9),
)
def test_rows_come_in_order_of_key_and_time_queries_first(drawn, collide, in_memory, size):
    # Keys share a hash only where all rows fit into memory.
    hash_of = hashes(collide if in_memory >= 120 else 8)
    rows = [(hash_of[key], key, time, query, number) for number, (key, time, query) in enumerate(drawn)]
    in_order = RowSort(1, in_memory * ROW_BYTES)(batches_of(rows, size))
    found = [tuple(row.values()) for batch in in_order for row in batch.to_pylist()]
    assert sorted(number for *_, number in found) == list(range(len(rows)))
    assert [hash_of[key] for key, *_ in found] == sorted(row[0] for row in rows)
    by_key = [(key, list(of_key)) for key, of_key in groupby(found, key=itemgetter(0))]
    assert len(by_key) == len({key for key, _ in by_key})
    for _, of_key in by_key:
        places = [(-(1 << 63) if time is None else time, not query) for _, time, query, _ in of_key]
        assert places == sorted(places)


def test_a_key_that_fills_memory_is_parted_by_time(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    rows = [(7, "a", (number * 37) % 1000, False, number) for number in range(1000)]
    found = RowSort(1, 50 * ROW_BYTES)(batches_of(rows, 20))
    first = next(found)
    assert first.num_rows <= 100
    times = [*first.column("time").to_pylist(), *(time for batch in found for time in batch.column("time").to_pylist())]
    assert times == list(range(1000))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("count", [0, 1, 200])
def test_rows_of_one_key_and_time_stay_together(count):
    rows = [(7, "a", 5, False, number) for number in range(count)]
    found = [row for batch in RowSort(1, 10 * ROW_BYTES)(batches_of(rows, 3)) for row in batch.to_pylist()]
    assert sorted(row["number"] for row in found) == list(range(count))
