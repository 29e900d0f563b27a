"""The Arrow form: the same state as the row form's, many keys at a call, and refusals that name what was wrong."""

import tempfile
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.spark import ArrowStatefulProcessor
from millpond.spark.runtime.shard_run import ShardRun
from millpond.spark.shuffle.pack import KEY_GROUP
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.lease import Attempt, Lease
from millpond.spark.spec.operator import BatchTime, OperatorSpec, StateConfig
from millpond.spark.testing.ddl import parse_ddl
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.spi import HeapBackend
from millpond.state.types.key_groups import key_group_of
from millpond.state.wrappers.lru.backend import LruStateCache
from tests.state.spillable.restless import open_spillable

KEY = pa.schema([("user", pa.string()), ("n", pa.int64())])
TYPES = [field.type for field in KEY]
ROWS = KEY.append(pa.field("amount", pa.float64()))
OUTPUT = pa.schema([("user", pa.string()), ("n", pa.int64()), ("events", pa.int64()), ("total", pa.float64())])
STATE = "events long, total double"
DDL = {ddl: parse_ddl(ddl) for ddl in (STATE, "page string", "at timestamp", "m string", "v long")}


class Spending(StatefulProcessor):
    """Counts and sums, row by row."""

    def init(self, handle):
        self.spending = handle.getValueState("spending", STATE)

    def handleInputRows(self, key, rows, timerValues):
        events, total = self.spending.get() or (0, 0.0)
        for row in rows:
            events, total = events + 1, total + row.amount
        self.spending.update((events, total))
        yield Row(user=key[0], n=key[1], events=events, total=total)

    def close(self):
        pass


class ArrowSpending(ArrowStatefulProcessor):
    """The same, over tables."""

    def init(self, handle):
        self.spending = handle.getValueState("spending", STATE)

    def handleInputTable(self, keys, rows, key_index, timerValues):
        before = self.spending.get_many(keys)
        count = np.bincount(key_index, minlength=len(keys))
        amount = np.bincount(key_index, weights=rows["amount"].to_numpy(), minlength=len(keys))
        after = {
            "events": pc.add(pc.fill_null(before["events"], 0), pa.array(count)),
            "total": pc.add(pc.fill_null(before["total"], 0.0), pa.array(amount)),
        }
        self.spending.update_many(keys, after)
        yield pa.table({**after, "user": keys["user"], "n": keys["n"]})


class Calling(ArrowStatefulProcessor):
    """Does what a test says."""

    def __init__(self, call, init=lambda self, handle: None, expired=None):
        self.call, self.declare, self.expired = call, init, expired

    def init(self, handle):
        self.handle = handle
        self.declare(self, handle)

    def handleInputTable(self, keys, rows, key_index, timerValues):
        return self.call(self, keys, rows, key_index)

    def handleExpiredTimers(self, keys, expiry_ms, timerValues):
        return self.expired(self, keys, expiry_ms)


def _shard(backend=None):
    shard = Shard(new_manifest("lineage", 0, 1, 128, KEY), backend or HeapBackend(range(128)))
    assert shard.begin_at(shard.manifest)
    return shard


def _packed(rows):
    """Rows in the order of their key groups, as a blob has them."""
    groups = [key_group_of(row[:2], TYPES, 128) for row in rows]
    order = sorted(range(len(rows)), key=groups.__getitem__)
    columns = [pa.array([rows[at][place] for at in order], type=field.type) for place, field in enumerate(ROWS)]
    table = pa.table(columns, schema=ROWS)
    return table.append_column(KEY_GROUP, pa.array([groups[at] for at in order], type=pa.int16()))


def _run(processor, rows, shard, *, form="arrow", time=BatchTime(), lease=None, **changes):  # noqa: B008 - frozen
    spec = OperatorSpec(
        application="app",
        processor=processor,
        key_schema=KEY,
        key_positions=(0, 1),
        row_names=tuple(ROWS.names),
        output_schema=changes.get("output_schema", OUTPUT),
        time_mode=changes.get("time_mode", "none"),
        event_time=None,
        keep_late=False,
        metrics=None,
        hosts=1,
        config=StateConfig(),
        ddl=DDL,
        form=form,
    )
    with Spool(lambda: Path(tempfile.gettempdir())) as output:
        result = ShardRun(spec, shard, time, lease or Lease(Attempt("app", 1))).run([_packed(rows)], output)
        tables = [pa.ipc.open_stream(pa.py_buffer(blob)).read_all() for blob in output]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()], result


_ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["ann", "bob", ""])),
        st.one_of(st.none(), st.integers(-1, 1)),
        st.integers(-8, 8).map(float),
    ),
    max_size=20,
)


@given(
    st.lists(st.tuples(_ROWS, st.sampled_from(["rows", "arrow"])), max_size=4),
    st.sampled_from(["heap", "cached", "spilled"]),
)
@settings(max_examples=50, deadline=None)
def test_both_forms_keep_the_same_state_and_each_goes_on_from_the_others(batches, kind):
    with ExitStack() as opened:
        _go_on_from_each_other(batches, lambda: _opened(kind, opened))


def _opened(kind, opened):
    if kind != "spilled":
        heap = HeapBackend(range(128))
        return LruStateCache(heap, max_entries=2) if kind == "cached" else heap
    folder = opened.enter_context(tempfile.TemporaryDirectory())
    backend = opened.enter_context(closing(open_spillable(range(128), Path(folder, "state"))))
    backend.spill_now(range(128))
    return backend


def _go_on_from_each_other(batches, backend):
    shard, plain, segments = _shard(backend()), {}, {}
    for number, (rows, form) in enumerate(batches):
        processor = Spending() if form == "rows" else ArrowSpending()
        output, _ = _run(processor, rows, shard, form=form)
        for user, n, amount in rows:
            events, total = plain.get((user, n), (0, 0.0))
            plain[user, n] = events + 1, total + amount
        assert Counter(output) == Counter((*key, *plain[key]) for key in {row[:2] for row in rows})
        commit = shard.commit(f"batch {number}")
        segments = {at: data for at, data in {**segments, **commit.segments}.items() if at not in commit.dropped}
        shard = Shard(commit.manifest, backend())
        shard.restore(segments)
        assert shard.begin_at(commit.manifest)
    cells = [shard.backend.cells("spending", group) for group in range(128)]
    assert {key: value for each in cells for key, value in zip(each.keys, each.values, strict=True)} == plain


def test_a_call_gets_distinct_keys_all_rows_and_each_rows_key():
    seen = []

    def call(self, keys, rows, key_index):
        seen.append((keys, rows, key_index))
        return iter([])

    rows = [("ann", 1, 0.0), ("bob", None, 1.0), ("ann", 1, 2.0), (None, 1, 3.0)]
    assert _run(Calling(call), rows, _shard())[0] == []
    ((keys, table, key_index),) = seen
    assert keys.schema == KEY
    assert table.schema == ROWS
    assert sorted(map(repr, keys.to_pylist())) == sorted(
        repr({"user": user, "n": n}) for user, n in {row[:2] for row in rows}
    )
    expected = {(row["user"], row["n"], row["amount"]) for row in table.to_pylist()}
    assert expected == set(rows)
    assert keys.take(key_index).equals(table.select(["user", "n"]))


def test_no_rows_make_no_call():
    assert _run(Calling(None), [], _shard())[0] == []


def test_state_is_had_for_any_table_with_the_keys_columns_in_any_order():
    rows = [("ann", 1, 1.0), ("bob", 2, 2.0), ("cyd", 3, 3.0)]
    shard = _shard()
    _run(ArrowSpending(), rows, shard)
    found = {}

    def call(self, keys, rows, key_index):
        some = keys.filter(pc.not_equal(keys["user"], "bob"))
        found["part"] = self.spending.get_many(some)["total"].to_pylist(), some["user"].to_pylist()
        found["other"] = self.spending.get_many({"n": [3, 9], "user": ["cyd", "new"]}).to_pylist()
        found["exists"] = self.spending.exists_many({"n": [9, 2], "user": ["new", "bob"]}).to_pylist()
        self.spending.update_many({"user": ["new", "ann"], "n": [9, 1]}, {"events": [7, 8], "total": [7, 8]})
        self.spending.clear_many({"user": ["bob"], "n": [2]})
        found["after"] = self.spending.get_many(keys)["events"].to_pylist(), keys["user"].to_pylist()
        return iter([])

    _run(Calling(call, ArrowSpending.init), rows, shard)
    assert dict(zip(found["part"][1], found["part"][0], strict=True)) == {"ann": 1.0, "cyd": 3.0}
    assert found["other"] == [{"events": 1, "total": 3.0}, {"events": None, "total": None}]
    assert found["exists"] == [False, True]
    assert dict(zip(found["after"][1], found["after"][0], strict=True)) == {"ann": 8, "bob": None, "cyd": 1}


def test_lists_and_maps_of_many_keys():
    found = {}

    def init(self, handle):
        self.pages = handle.getListState("pages", "page string")
        self.marks = handle.getMapState("marks", "m string", "v long")

    def call(self, keys, rows, key_index):
        users = keys["user"].to_pylist()
        self.pages.update_many(keys, [[{"page": user}] for user in users])
        self.pages.append_many(keys, [[{"page": "x"}, {"page": None}] if user == "ann" else [] for user in users])
        found["lists"] = dict(zip(users, self.pages.get_many(keys).to_pylist(), strict=True))
        self.pages.update_many({"user": ["bob"], "n": [2]}, [[]])
        found["cut"] = self.pages.get_many({"user": ["bob", "ann"], "n": [2, 1]}).to_pylist()
        self.pages.clear_many(keys)
        found["cleared"] = self.pages.get_many(keys).to_pylist()
        self.marks.update_many(keys, {"m": users}, {"v": range(len(keys))})
        self.marks.update_many({"user": ["ann"], "n": [1]}, {"m": ["more"]}, {"v": [9]})
        found["entry"] = self.marks.get_many({"user": ["ann", "bob"], "n": [1, 2]}, {"m": ["more", "more"]}).to_pylist()
        numbers, map_keys, values = self.marks.items_many({"user": ["ann"], "n": [1]})
        found["items"] = numbers.to_pylist(), map_keys["m"].to_pylist(), values["v"].to_pylist()[1:]
        self.marks.remove_many({"user": ["ann"], "n": [1]}, {"m": ["ann"]})
        found["removed"] = self.marks.items_many({"user": ["ann"], "n": [1]})[1]["m"].to_pylist()
        self.marks.clear_many(keys)
        found["none"] = len(self.marks.items_many(keys)[0])
        return iter([])

    _run(Calling(call, init), [("ann", 1, 0.0), ("bob", 2, 0.0)], _shard())
    assert found["lists"] == {"ann": [{"page": "ann"}, {"page": "x"}, {"page": None}], "bob": [{"page": "bob"}]}
    assert found["cut"] == [[], [{"page": "ann"}, {"page": "x"}, {"page": None}]]
    assert found["cleared"] == [[], []]
    assert found["entry"] == [{"v": 9}, {"v": None}]
    assert found["items"] == ([0, 0], ["ann", "more"], [9])
    assert (found["removed"], found["none"]) == (["more"], 0)


def test_timers_of_many_keys_fire_in_one_call_in_the_order_of_their_time_and_are_gone():
    fired = []

    def call(self, keys, rows, key_index):
        self.handle.registerTimers(keys, pc.multiply(keys["n"], 10))
        self.handle.registerTimers(keys, 25)
        self.handle.deleteTimers({"user": ["cyd"], "n": [3]}, [30])
        listed = zip(keys["user"].to_pylist(), self.handle.listTimers(keys).to_pylist(), strict=True)
        assert dict(listed) == {"ann": [10, 25], "bob": [20, 25], "cyd": [25]}
        return iter([])

    def expired(self, keys, expiry_ms):
        fired.append(list(zip(keys["user"].to_pylist(), expiry_ms.to_pylist(), strict=True)))
        counts = pa.array([1] * len(keys))
        yield keys.append_column("events", counts).append_column("total", pc.cast(expiry_ms, pa.float64()))

    shard = _shard()
    rows = [("ann", 1, 0.0), ("bob", 2, 0.0), ("cyd", 3, 0.0)]
    processor = Calling(call, expired=expired)
    output, result = _run(processor, rows, shard, time=BatchTime(5, -1), time_mode="processingtime")
    assert (output, fired, result.next_timer_ms) == ([], [], 10)
    shard.commit("first")
    output, result = _run(processor, [], shard, time=BatchTime(24, -1), time_mode="processingtime")
    assert fired == [[("ann", 10), ("bob", 20)]]
    assert output == [("ann", 1, 1, 10.0), ("bob", 2, 1, 20.0)]
    assert result.next_timer_ms == 25
    output, result = _run(processor, [], shard, time=BatchTime(99, -1), time_mode="processingtime")
    assert sorted(fired[1]) == [("ann", 25), ("bob", 25), ("cyd", 25)]
    assert result.next_timer_ms == -1


def test_times_come_back_as_they_were_given():
    at = pa.array([1_700_000_000_123_456, None], type=pa.timestamp("us", tz="UTC"))
    found = []

    def init(self, handle):
        self.last = handle.getValueState("last", "at timestamp")

    def call(self, keys, rows, key_index):
        self.last.update_many(
            {"user": ["ann", "bob"], "n": [1, 2]}, {"at": at.cast(pa.timestamp("us", tz="Asia/Tokyo"))}
        )
        found.append(self.last.get_many({"user": ["ann", "bob"], "n": [1, 2]})["at"])
        return iter([])

    _run(Calling(call, init), [("ann", 1, 0.0)], _shard())
    assert found[0].combine_chunks().equals(at)


def _declares(self, handle):
    self.spending = handle.getValueState("spending", STATE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda self, keys, *_: None, r"Calling.handleInputTable returned None; expected an iterator of Arrow tables"),
        (lambda self, keys, *_: iter([7]), r"gave int 7; expected a pyarrow.Table with the columns \['user'"),
        (lambda self, keys, *_: iter([keys]), r"gave a table with the columns \['user', 'n'\]; \['events', 'total'\]"),
        (
            lambda self, keys, *_: iter([pa.table({"user": [1.5], "n": ["x"], "events": [1], "total": [1]})]),
            r"output of Calling.handleInputTable: column 'n' is int64, got string",
        ),
        (lambda self, *_: self.spending.get_many(["ann"]), r"the keys: expected a pyarrow.Table.*got list"),
        (lambda self, *_: self.spending.get_many({"user": ["a"]}), r"the columns are \['user'\]; \['n'\]"),
        (
            lambda self, keys, *_: self.spending.update_many(keys, {"events": [1.5], "total": [1.0]}),
            r"state 'spending': column 'events' is int64, got list.*Convert it",
        ),
        (
            lambda self, keys, *_: self.spending.update_many(keys, {"events": pa.array([1.5]), "total": [1.0]}),
            r"state 'spending': column 'events' is int64, got double",
        ),
        (
            lambda self, keys, *_: self.spending.update_many(keys, {"events": [1, 2], "total": [1.0, 2.0]}),
            r"state 'spending': there are 2 values for 1 keys",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, message):
    with pytest.raises(DataError, match=message):
        _run(Calling(call, _declares), [("ann", 1, 0.0)], _shard())


def test_a_key_of_another_shard_is_refused():
    manifest = new_manifest("lineage", 0, 2, 128, KEY)
    shard = Shard(manifest, HeapBackend(manifest.key_groups))
    assert shard.begin_at(manifest)
    users = [f"user-{number}" for number in range(40)]
    here = next(user for user in users if key_group_of((user, 1), TYPES, 128) < 64)
    there = next(user for user in users if key_group_of((user, 1), TYPES, 128) >= 64)
    call = lambda self, *_: self.spending.get_many({"user": [there], "n": [1]})  # noqa: E731
    with pytest.raises(DataError, match=rf"key \('{there}', 1\) belongs to another shard"):
        _run(Calling(call, _declares), [(here, 1, 0.0)], shard)


def test_timers_need_a_time_mode_and_states_are_declared_in_init():
    with pytest.raises(OptionError, match="timers need timeMode"):
        _run(Calling(lambda self, keys, *_: self.handle.registerTimers(keys, 5)), [("ann", 1, 0.0)], _shard())
    with pytest.raises(OptionError, match=r"declared in init\(\)"):
        _run(Calling(lambda self, *_: _declares(self, self.handle)), [("ann", 1, 0.0)], _shard())


def test_a_superseded_attempt_is_stopped_before_the_call():
    lease = Lease(Attempt("app", 1))
    lease.superseded_by = Attempt("app", 2)
    with pytest.raises(UnavailableError, match="superseded"):
        _run(Calling(None), [("ann", 1, 0.0)], _shard(), lease=lease)


def test_a_null_where_the_output_takes_none_is_refused_by_name():
    strict = pa.schema([("user", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    call = lambda self, keys, *_: iter([keys])  # noqa: E731
    assert _run(Calling(call), [("ann", 1, 0.0)], _shard(), output_schema=strict)[0] == [("ann", 1)]
    with pytest.raises(DataError, match="output column 'n' is declared as not null"):
        _run(Calling(call), [("ann", None, 0.0)], _shard(), output_schema=strict)
