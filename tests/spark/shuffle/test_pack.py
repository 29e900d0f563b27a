"""The packed shuffle: every row arrives once, at the shard of its key, in the order it came."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError
from millpond.spark.shuffle import arrow_lots
from millpond.spark.shuffle import pack as pack_module
from millpond.spark.shuffle.pack import KEY_GROUP, Layout, pack, read_blob, unpack
from millpond.spark.shuffle.partitioner import partition_of
from millpond.state.types.key_groups import key_group_of, key_hash, max_parallelism, shard_of

DATA = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("words", pa.list_(pa.string()))])


@pytest.fixture
def task(monkeypatch):
    """Makes this process look like a task: its partition and local properties."""

    def become(partition=0, **properties):
        running = SimpleNamespace(
            partitionId=lambda: partition, getLocalProperty=lambda name: properties.get(name.rpartition(".")[2])
        )
        monkeypatch.setattr(pack_module, "TaskContext", SimpleNamespace(get=lambda: running))

    return become


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


def _batches(keys_of_batches):
    """Batches as Spark gives them to pack: the data, and the hash of the key as the last column."""
    at = 0
    for keys in keys_of_batches:
        rows = [(key, at + number, [str(key)] * (number % 3)) for number, key in enumerate(keys)]
        at += len(rows)
        hashes = [_signed(key_hash((key,), [pa.int64()])) for key in keys]
        columns = [pa.array([row[column] for row in rows], type=DATA.field(column).type) for column in range(3)]
        yield pa.record_batch(
            [*columns, pa.array(hashes, type=pa.int64())], schema=DATA.append(pa.field("h", pa.int64()))
        )


def _blobs(batches):
    return [(row["millpond_shard"], row["blob"]) for batch in batches for row in batch.to_pylist()]


keys = st.one_of(st.integers(0, 5), st.none(), st.integers(-(1 << 63), (1 << 63) - 1))


@given(st.lists(st.lists(keys, max_size=12), max_size=4), st.sampled_from([1, 2, 7, 200]), st.sampled_from([1, 9, 99]))
@settings(max_examples=40, deadline=None)
def test_every_row_arrives_once_at_the_shard_of_its_key_in_order(keys_of_batches, shards, rows_at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_lots, "ROWS_OF_A_BATCH", rows_at_once)
        running = SimpleNamespace(partitionId=lambda: 3, getLocalProperty=lambda name: str(shards))
        patch.setattr(pack_module, "TaskContext", SimpleNamespace(get=lambda: running))
        blobs = _blobs(pack(_batches(keys_of_batches), DATA))
    layout = Layout(shards, max_parallelism(shards))
    arrived, by_key = [], {}
    for routing_key, blob in blobs:
        table = read_blob(blob, layout)
        assert table.num_rows
        rows = table.to_pylist()
        assert [row[KEY_GROUP] for row in rows] == sorted(row[KEY_GROUP] for row in rows)
        for row in rows:
            group = key_group_of((row["key"],), [pa.int64()], layout.max_parallelism)
            assert row[KEY_GROUP] == group
            assert partition_of(routing_key, shards) == shard_of(group, shards, layout.max_parallelism)
            arrived.append((row["at"], row["key"], row["words"]))
            by_key.setdefault(row["key"], []).append(row["at"])
    sent = [tuple(row.values())[:3] for batch in _batches(keys_of_batches) for row in batch.to_pylist()]
    assert len(arrived) == len(sent)
    assert {at: (key, words) for at, key, words in arrived} == {at: (key, words) for key, at, words in sent}
    assert all(order == sorted(order) for order in by_key.values())


def test_small_batches_of_a_shard_are_one_blob(task):
    task(partition=1, partitions="7")
    ((_, blob),) = _blobs(pack(_batches([[1], [1], [1]]), DATA))
    assert read_blob(blob, Layout(7, 128))["at"].to_pylist() == [0, 1, 2]


def test_partition_zero_sends_an_empty_blob_to_every_shard_it_has_no_row_for(task):
    task(partition=0, partitions="7")
    layout = Layout(7, 128)
    blobs = _blobs(pack(_batches([[1, 2], []]), DATA))
    tables = {}
    for routing_key, blob in blobs:
        tables.setdefault(partition_of(routing_key, 7), []).append(read_blob(blob, layout))
    assert sorted(tables) == list(range(7))
    assert sum(table.num_rows for found in tables.values() for table in found) == 2
    whole = pa.concat_tables([table for found in tables.values() for table in found])
    assert whole.schema.names == [*DATA.names, KEY_GROUP], "empty blobs have the schema of full ones"


def test_partition_zero_without_any_batch_still_reaches_every_shard(task):
    task(partition=0, partitions="3")
    blobs = _blobs(pack([], DATA))
    assert sorted(partition_of(routing_key, 3) for routing_key, _ in blobs) == [0, 1, 2]
    assert all(read_blob(blob, Layout(3, 128)).num_rows == 0 for _, blob in blobs)


def test_other_partitions_send_only_what_they_have(task):
    task(partition=1, partitions="7")
    assert len(_blobs(pack(_batches([[1]]), DATA))) == 1
    assert _blobs(pack([], DATA)) == []


def test_the_layout_is_that_of_the_streams_first_start_before_the_sessions(monkeypatch):
    def running(**properties):
        names = {
            "streaming": "spark.sql.streaming.internal.stateStore.partitions",
            "batch": "spark.sql.shuffle.partitions",
        }
        known = {names[at]: value for at, value in properties.items()}
        task = SimpleNamespace(getLocalProperty=known.get)
        monkeypatch.setattr(pack_module, "TaskContext", SimpleNamespace(get=lambda: task))

    running(streaming="5", batch="9")
    assert Layout.of_task() == Layout(5, 128)
    running(batch="100")
    assert Layout.of_task() == Layout(100, 256)
    running()
    assert Layout.of_task() == Layout(200, 512), "Spark's own default"


@pytest.mark.parametrize("foreign", [Layout(2, 128), Layout(7, 256)])
def test_a_blob_packed_for_another_layout_is_refused_with_both(task, foreign):
    task(partition=0, partitions="7")
    (_, blob), *_ = _blobs(pack(_batches([[1]]), DATA))
    with pytest.raises(CorruptionError, match=rf"'shards': 7, 'max_parallelism': 128.*shards={foreign.shards}"):
        read_blob(blob, foreign)


def test_rows_that_nobody_packed_are_refused():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, DATA):
        pass
    with pytest.raises(CorruptionError, match="rows were packed for"):
        read_blob(sink.getvalue().to_pybytes(), Layout(7, 128))


@given(st.lists(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), max_size=3), max_size=3))
@settings(max_examples=30, deadline=None)
def test_unpacking_gives_the_rows_of_the_blobs_in_order_and_passes_over_rows_without_one(batches):
    def blob(values):
        if values is None:
            return None
        table = pa.table({"x": pa.array(values, type=pa.int64())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    packed = [
        pa.record_batch([pa.array([blob(v) for v in values], type=pa.binary())], names=["blob"]) for values in batches
    ]
    rows = [value for batch in unpack(packed) for value in batch.column(0).to_pylist()]
    assert rows == [value for batch in batches for values in batch for value in values or []]
