"""The tasks of a hop table make the rows that the events make, however keys hash and in whatever lots they come."""

import random
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.errors import CorruptionError, DataError
from millpond.features import DAY_MS, Aggregation, Field, GroupBy, compile_group_by
from millpond.spark.features.hops.batch_rows_of_keys import RowCounts, batch_rows_of_keys
from millpond.spark.features.hops.files import KEY_HASH, read_files
from millpond.spark.features.hops.tasks import ROUTING_KEY, HopTask
from millpond.spark.shuffle.partitioner import routing_keys

B = 16_000 * DAY_MS
PLAN = compile_group_by(
    GroupBy(
        "spent",
        keys=(Field("k", "string"), Field("n", "long")),
        inputs=(Field("x", "double"),),
        aggregations=(
            Aggregation("average", "x", ("1d", "7d", None)),
            Aggregation("variance", "x", ("1d",)),
            Aggregation("min", "x", ("7d",)),
            Aggregation("last_k", "x", ("7d",), k=2),
        ),
    )
)


def events_of(rows, hash_of):
    """The rows as Spark gives them to a task: behind the row that says which bucket it is, sorted by hash."""
    made = [(hash_of(k, n), k, n, time_ms, x) for k, n, time_ms, x in rows]
    made.sort(key=lambda row: row[0])
    columns = list(zip((None,) * 5, *made, strict=True))
    names = [KEY_HASH, "key_0", "key_1", "time_ms", "input_0"]
    types = [pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.float64()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    routing_key = pa.array([routing_keys(1)[0]] * (len(made) + 1), pa.int32())
    return pa.Table.from_arrays([routing_key, *arrays], names=[ROUTING_KEY, *names])


def expected_rows(rows, end_ms):
    events = events_of(sorted(rows), lambda k, n: 0).slice(1)
    return dict(batch_rows_of_keys(PLAN, end_ms, events.to_batches(), RowCounts()))


def drawn(rng, count, begin_ms, end_ms):
    return [
        (
            rng.choice("abcde"),
            rng.randrange(3),
            rng.randrange(begin_ms, end_ms),
            rng.choice((None, -1e300, 5e-324, rng.gauss(0, 9), rng.gauss(0, 9))),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    "hash_of",
    [lambda k, n: 7, lambda k, n: n - 1, lambda k, n: crc32(f"{k}{n}".encode()) - 2**31],
    ids=["all keys collide", "some keys collide", "no keys collide"],
)
@pytest.mark.parametrize("at_once", [1, 7, 1 << 15])
def test_rows_of_files_and_of_new_events_are_those_of_all_events(tmp_path, monkeypatch, hash_of, at_once):
    monkeypatch.setattr("millpond.spark.shuffle.arrow_lots.ROWS_AT_ONCE", at_once)
    monkeypatch.setattr("millpond.spark.features.hops.files._ROWS_AT_ONCE", at_once)
    monkeypatch.setattr("millpond.spark.features.hops.files._ROWS_A_GROUP", at_once)
    rng = random.Random(at_once)
    history, day = drawn(rng, 60, B - 9 * DAY_MS, B), drawn(rng, 20, B, B + DAY_MS)
    first = HopTask(PLAN, B, tmp_path, 1, 1, (), ()).attempt()
    made = dict(first.batch_rows(events_of(history, hash_of).to_batches(3), RowCounts()))
    assert made == expected_rows(history, B)
    end_ms = B + DAY_MS
    counts = RowCounts()
    second = HopTask(PLAN, end_ms, tmp_path, 2, 1, first.files[:5], first.files[5:]).attempt()
    made = dict(second.batch_rows(events_of(day, hash_of).to_batches(3), counts))
    assert made == expected_rows(history + day, end_ms)
    assert counts.events == len(day)


def test_sums_of_any_width_are_those_of_all_events(tmp_path):
    """Numbers of more than 255 bytes are stored with a longer length."""
    history = [("a", 1, B - n * DAY_MS - 1, x) for n, x in enumerate((1e308, 5e-324, 0.1, -1e308))]
    history += [("b", 1, B - n * DAY_MS - 1, x) for n, x in enumerate((2.0, -2.0, 3.5))]
    first = HopTask(PLAN, B, tmp_path, 1, 1, (), ()).attempt()
    assert dict(first.batch_rows(events_of(history, lambda k, n: n).to_batches(), RowCounts())) == expected_rows(
        history, B
    )
    end_ms = B + 8 * DAY_MS
    second = HopTask(PLAN, end_ms, tmp_path, 2, 1, first.files, ()).attempt()
    made = dict(second.batch_rows(events_of([], lambda k, n: n).to_batches(), RowCounts()))
    assert made == expected_rows(history, end_ms)


def test_a_task_without_new_events_makes_the_rows_of_the_files(tmp_path):
    history = drawn(random.Random(3), 40, B - 9 * DAY_MS, B)
    first = HopTask(PLAN, B, tmp_path, 1, 1, (), ()).attempt()
    first.write_files(events_of(history, lambda k, n: n).to_batches(), RowCounts())
    second = HopTask(PLAN, B + DAY_MS, tmp_path, 2, 1, (), first.files).attempt()
    made = dict(second.batch_rows(events_of([], lambda k, n: n).to_batches(), RowCounts()))
    assert made == expected_rows(history, B + DAY_MS)
    assert second.files == ()


def test_hops_lie_in_the_files_by_the_hash_of_their_key(tmp_path):
    history = drawn(random.Random(4), 80, B - 2 * DAY_MS, B)
    attempt = HopTask(PLAN, B, tmp_path, 1, 1, (), ()).attempt()
    attempt.write_files(events_of(history, lambda k, n: crc32(f"{k}{n}".encode()) - 2**31).to_batches(4), RowCounts())
    assert attempt.files
    for name in attempt.files:
        hashes = pq.read_table(tmp_path / name)[KEY_HASH].to_numpy()
        assert (np.diff(hashes) >= 0).all()


def test_a_file_is_refused_whichever_of_its_bytes_is_altered(tmp_path):
    """A byte in the header of a page, that no checksum of Parquet covers, would let the page be passed over."""
    history = drawn(random.Random(5), 20, B - DAY_MS, B)
    attempt = HopTask(PLAN, B, tmp_path, 1, 1, (), ()).attempt()
    attempt.write_files(events_of(history, lambda k, n: n).to_batches(), RowCounts())
    name = attempt.files[0]
    data = (tmp_path / name).read_bytes()
    for place in range(len(data)):
        (tmp_path / name).write_bytes(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])
        with pytest.raises(CorruptionError, match=rf"{name}.*CRC-32"):
            list(read_files(tmp_path, [name], [KEY_HASH])[0])
    (tmp_path / name).write_bytes(data)
    assert sum(map(len, read_files(tmp_path, [name], [KEY_HASH])[0]))


def test_a_time_that_is_no_number_of_milliseconds_is_refused(tmp_path):
    """The distance of the least long from the batch end does not fit into 64 bits: it would be a time after the end."""
    events = events_of([("a", 1, -(1 << 63), 1.0)], lambda k, n: n)
    with pytest.raises(DataError, match=r"'spent'.*-9223372036854775808.*milliseconds"):
        list(batch_rows_of_keys(PLAN, B, events.slice(1).to_batches(), RowCounts()))
    with pytest.raises(DataError, match=r"'spent'.*-9223372036854775808.*milliseconds"):
        list(HopTask(PLAN, B, tmp_path, 1, 1, (), ()).attempt().batch_rows(events.to_batches(), RowCounts()))
