"""One batch of one shard: every key's rows in one call, Spark's grouping, and refusals that name what was wrong."""

import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.spark.runtime import shard_run
from millpond.spark.runtime.shard_run import ShardRun
from millpond.spark.shuffle import pack as pack_module
from millpond.spark.shuffle.pack import Layout, pack, read_blob, unpack
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.lease import Attempt, Lease
from millpond.spark.spec.operator import BatchTime, OperatorSpec, StateConfig
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.spi import HeapBackend
from millpond.state.types.key_groups import key_hash

OUTPUT = pa.schema([("key", pa.string()), ("seen", pa.int64())])
LAYOUT = Layout(1, 128)


class Seeing(StatefulProcessor):
    """Remembers the calls it gets, and what `answer` makes of them."""

    def __init__(self, answer=None):
        self.calls = []
        self.answer = answer or (lambda key, rows: iter([Row(key=repr(key[0]), seen=len(rows))]))
        self.closed = False

    def init(self, handle):
        self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        before = self.count.get()
        self.count.update(((before[0] if before else 0) + len(rows),))
        self.calls.append((key, rows))
        return self.answer(key, rows)

    def close(self):
        self.closed = True


def _spec(processor, keys, row_names=("key", "at"), **changes):
    given = {
        "application": "app",
        "processor": processor,
        "key_schema": keys,
        "key_positions": tuple(range(len(keys))),
        "row_names": row_names,
        "output_schema": OUTPUT,
        "time_mode": "none",
        "event_time": None,
        "keep_late": False,
        "metrics": None,
        "hosts": 1,
        "config": StateConfig(),
    }
    return OperatorSpec(**(given | changes))


def _shard(keys):
    shard = Shard(new_manifest("lineage", 0, 1, 128, keys), HeapBackend(range(128)))
    assert shard.begin_at(shard.manifest)
    return shard


def _blobs(table, keys):
    """The blobs that pack makes of a table, one of each of its batches; the keys are its first columns."""
    schema, kinds = table.schema, [field.type for field in keys]

    def hashed():
        for batch in table.to_batches():
            columns = [batch.column(at).to_pylist() for at in range(len(keys))]
            hashes = [key_hash(key, kinds) for key in zip(*columns, strict=True)]
            signed = [value - (1 << 64) if value >> 63 else value for value in hashes]
            yield pa.record_batch([*batch.columns, pa.array(signed, type=pa.int64())], names=[*schema.names, "hash"])

    with pytest.MonkeyPatch.context() as patch:
        task = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=lambda name: "1")
        patch.setattr(pack_module, "TaskContext", SimpleNamespace(get=lambda: task))
        return [row["blob"] for batch in pack(hashed(), schema) for row in batch.to_pylist()]


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def _table(values, kind, chunks=1):
    whole = pa.table({"key": pa.array(values, type=kind), "at": pa.array(range(len(values)), type=pa.int64())})
    size = max(1, -(-len(values) // chunks))
    return pa.concat_tables([whole.slice(first, size) for first in range(0, max(1, len(values)), size)])


def _run(processor, values, kind, chunks=1, lease=None, shard=None, **changes):
    keys = pa.schema([("key", kind)])
    shard = shard or _shard(keys)
    lease = lease or Lease(Attempt("app", 1))
    run = ShardRun(_spec(processor, keys, **changes), shard, BatchTime(), lease)
    # Nothing fits into memory: rows and output wait in a file.
    with Spool(_temporary, memory_bytes=0) as received, Spool(_temporary, memory_bytes=0) as output:
        for blob in _blobs(_table(values, kind, chunks), keys):
            received.add(blob)
        run.run((read_blob(blob, LAYOUT) for blob in received), output)
        blobs = [bytes(blob) for blob in output]
    packed = [pa.record_batch([pa.array(blobs, type=pa.binary())], names=["blob"])]
    return [row for batch in unpack(packed) for row in batch.to_pylist()], shard


@given(st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh")), max_size=30), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_every_key_gets_all_its_rows_in_one_call_in_order(values, chunks):
    processor = Seeing()
    output, shard = _run(processor, values, pa.string(), chunks)
    assert len(processor.calls) == len(set(values))
    assert dict(processor.calls) == {
        (value,): [Row(key=value, at=at) for at, found in enumerate(values) if found == value] for value in set(values)
    }
    assert sorted((row["key"], row["seen"]) for row in output) == sorted(
        (repr(value), values.count(value)) for value in set(values)
    )
    changed = dict(shard.backend.commit().changes()).get("count")
    assert dict(zip(changed.keys, changed.values, strict=True) if changed else ()) == {
        (value,): (values.count(value),) for value in set(values)
    }
    assert processor.closed


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_every_nan_is_one_key_and_so_are_both_zeros_as_in_spark(kind):
    processor = Seeing()
    values = [math.nan, 0.0, -math.nan, -0.0, None, 1.5, math.nan, None]
    _, shard = _run(processor, values, kind)
    counts = {repr(key[0]): len(rows) for key, rows in processor.calls}
    assert counts == {"nan": 3, "0.0": 2, "None": 2, "1.5": 1}
    shard.commit("first")
    _run(processor, [-math.nan, -0.0], kind, shard=shard)
    found = dict(shard.backend.commit().changes())["count"]
    assert {repr(key[0]): value for key, value in zip(found.keys, found.values, strict=True)} == {
        "nan": (4,),
        "0.0": (3,),
    }


def test_keys_of_several_columns_are_told_apart_with_their_nulls():
    keys = pa.schema([("a", pa.string()), ("b", pa.int64())])
    rows = [("x", 1), ("x", None), (None, 1), (None, None), ("x", 1), ("1", None)]
    table = pa.table(
        {"a": [a for a, _ in rows], "b": pa.array([b for _, b in rows], type=pa.int64()), "at": list(range(len(rows)))}
    )
    processor = Seeing()
    spec = _spec(processor, keys, row_names=("a", "b", "at"))
    ShardRun(spec, _shard(keys), BatchTime(), Lease(Attempt("app", 1))).run(
        [read_blob(blob, LAYOUT) for blob in _blobs(table, keys)], Spool(_temporary)
    )
    assert {key: [row.at for row in found] for key, found in processor.calls} == {
        ("x", 1): [0, 4],
        ("x", None): [1],
        (None, 1): [2],
        (None, None): [3],
        ("1", None): [5],
    }


def test_hidden_columns_are_not_shown():
    processor = Seeing()
    _run(processor, ["a"], pa.string(), row_names=("key",))
    assert processor.calls == [(("a",), [Row(key="a")])]


def test_no_rows_make_no_calls_and_no_output():
    processor = Seeing()
    output, _ = _run(processor, [], pa.string())
    assert (output, processor.calls, processor.closed) == ([], [], True)


def test_a_processor_that_returns_none_is_told_what_to_return():
    with pytest.raises(DataError, match=r"Seeing.handleInputRows returned None for key \('a',\).*iter\(\[\]\)"):
        _run(Seeing(lambda key, rows: None), ["a"], pa.string())


@pytest.mark.parametrize("wrong", [("a", 1), {"key": "a"}, 7, None], ids=repr)
def test_a_processor_that_yields_no_row_is_told_which_fields_to_give(wrong):
    with pytest.raises(DataError, match=rf"the processor gave {type(wrong).__name__} .*'key', 'seen'"):
        _run(Seeing(lambda key, rows: iter([wrong])), ["a"], pa.string())


def test_a_processor_may_yield_nothing():
    output, shard = _run(Seeing(lambda key, rows: iter([])), ["a", "b"], pa.string())
    assert output == []
    assert len(dict(shard.backend.commit().changes())["count"]) == 2


def test_a_superseded_attempt_stops_before_its_next_key():
    lease = Lease(Attempt("app", 1))

    def answer(key, rows):
        lease.superseded_by = Attempt("app", 2)
        return iter([])

    processor = Seeing(answer)
    with pytest.raises(UnavailableError, match=r"order=1.*superseded by.*order=2"):
        _run(processor, ["a", "b", "c"], pa.string(), lease=lease)
    assert len(processor.calls) == 1


def test_an_error_of_user_code_comes_out_as_it_is():
    def answer(key, rows):
        raise ZeroDivisionError(key)

    with pytest.raises(ZeroDivisionError):
        _run(Seeing(answer), ["a"], pa.string())


def test_a_schema_as_text_that_the_driver_did_not_see_is_refused():
    class Late(Seeing):
        def init(self, handle):
            handle.getValueState("count", "n long")

    with pytest.raises(OptionError, match=r"'n long' was not declared when the query was planned"):
        _run(Late(), ["a"], pa.string())


class Renamed(Seeing):
    """Declares the state of `Seeing` with another field."""

    def init(self, handle):
        self.count = handle.getValueState("count", StructType([StructField("number", LongType())]))


@pytest.mark.parametrize("stored", [["a", "b"], []], ids=["with-rows", "empty"])
@pytest.mark.parametrize("restored", [True, False])
def test_a_state_that_is_declared_otherwise_than_stored_is_refused_by_name_before_any_row(stored, restored):
    _, shard = _run(Seeing(), stored, pa.string())
    commit = shard.commit("first")
    if restored:
        shard = Shard(commit.manifest, HeapBackend(range(128)))
        shard.restore(commit.segments)
    assert shard.begin_at(commit.manifest)
    changed = Renamed()
    with pytest.raises(OptionError, match=r"state 'count' .*\(n: int64\)\].*\(number: int64\)\].*another name"):
        _run(changed, ["a"], pa.string(), shard=shard)
    assert changed.calls == []
    assert shard.begin_at(commit.manifest)
    output, _ = _run(Seeing(), ["a"], pa.string(), shard=shard)
    assert output == [{"key": "'a'", "seen": 1}]


def test_large_output_is_cut_into_blobs_in_order(monkeypatch):
    monkeypatch.setattr(shard_run, "OUTPUT_BLOB_ROWS", 3)
    numbered = Seeing(lambda key, rows: iter([Row(key=key[0], seen=at) for at in range(8)]))
    output, _ = _run(numbered, ["a"], pa.string())
    assert [row["seen"] for row in output] == list(range(8))


def test_a_row_at_the_watermark_of_the_batch_before_is_late_and_one_behind_it_is_not():
    keys = pa.schema([("key", pa.string())])
    shard = _shard(keys)
    shard.commit("the batch before", watermark_ms=7)
    assert shard.begin_at(shard.manifest)
    times = pa.array([6_999, 7_000, 7_001, None], type=pa.timestamp("us", tz="UTC"))
    table = pa.table({"key": ["before", "at", "behind", "without a time"], "at": times})
    processor = Seeing()
    spec = _spec(processor, keys, time_mode="eventtime", event_time=1)
    run = ShardRun(spec, shard, BatchTime(), Lease(Attempt("app", 1)))
    with Spool(_temporary) as output:
        result = run.run((read_blob(blob, LAYOUT) for blob in _blobs(table, keys)), output)
    assert sorted(key[0] for key, _ in processor.calls) == ["behind", "without a time"]
    assert result.metrics.late_rows == 2


def test_each_blob_of_output_comes_with_its_oldest_event_time(monkeypatch):
    monkeypatch.setattr(shard_run, "OUTPUT_BLOB_ROWS", 1)
    keys = pa.schema([("key", pa.string())])
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    seconds = {"ann": [30, 10, None], "bob": [20], "cid": [None]}
    processor = Seeing(
        lambda key, rows: iter([Row(key=key[0], at=at and datetime.fromtimestamp(at, UTC)) for at in seconds[key[0]]])
    )
    table = pa.table({"key": list(seconds), "at": [0, 1, 2]})
    found = {}
    for position in (1, None):
        spec = _spec(processor, keys, output_schema=schema, output_event_time=position)
        with Spool(_temporary) as output:
            run = ShardRun(spec, _shard(keys), BatchTime(), Lease(Attempt("app", 1)))
            done = run.run([read_blob(blob, LAYOUT) for blob in _blobs(table, keys)], output)
            users = [pa.ipc.open_stream(pa.py_buffer(blob)).read_all()["key"][0].as_py() for blob in output]
            found[position] = dict(zip(users, done.oldest, strict=True)) if done.oldest else done.oldest
    assert found == {
        1: {"ann": datetime.fromtimestamp(10, UTC), "bob": datetime.fromtimestamp(20, UTC), "cid": None},
        None: (),
    }


def test_output_leaves_in_blobs_of_so_many_rows_or_bytes(monkeypatch):
    tables = [pa.table({"x": pa.array([b"0123456789"] * 2)})] * 3

    def rows_of_blobs():
        return [table.num_rows for table in shard_run._joined(tables)]

    assert rows_of_blobs() == [6]
    monkeypatch.setattr(shard_run, "OUTPUT_BLOB_ROWS", 3)
    assert rows_of_blobs() == [4, 2]
    monkeypatch.setattr(shard_run, "OUTPUT_BLOB_BYTES", 10)
    assert rows_of_blobs() == [2, 2, 2]
