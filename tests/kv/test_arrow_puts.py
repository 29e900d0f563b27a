"""Rows that come as Arrow columns are written as the same bytes as a list of `Put`, without a `Put` for each."""

import tempfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.kv import MAX_KEY_BYTES, Get, LmdbStore, MemoryStore, Put, TimedValue
from millpond.kv.arrow_puts import ArrowPuts
from millpond.kv.lmdb import arrow_rows
from tests.kv.lmdb_rows import entries

FIRST, LAST = 1 - (1 << 53), (1 << 53) - 1


def columns_of(puts):
    return ArrowPuts(
        pa.array([put.key for put in puts], pa.binary()),
        pa.array([put.value for put in puts], pa.binary()),
        pa.array([put.time_ms for put in puts], pa.int64()),
        pa.array([put.keep_until_ms for put in puts], pa.int64()),
    )


PUTS = st.builds(
    Put,
    key=st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xff" * MAX_KEY_BYTES]) | st.binary(max_size=12),
    value=st.binary(max_size=12),
    time_ms=st.sampled_from([FIRST, -300_000, -1, 0, 1, 300_000, LAST]),
    keep_until_ms=st.sampled_from([0, 1, 1_060_000, 2_000_000, LAST]),
)


@given(
    writes=st.lists(st.lists(PUTS, max_size=12), min_size=1, max_size=3),
    rows=st.sampled_from(["one", "many"]),
    ttl_ms=st.sampled_from([None, 60_000]),
    declared=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_lmdb_holds_the_same_bytes_whether_rows_come_as_columns_or_one_by_one(writes, rows, ttl_ms, declared):
    held = []
    for form in (list, columns_of):
        with tempfile.TemporaryDirectory() as folder:
            with LmdbStore(folder, map_bytes=1 << 20, sync=False, clock=lambda: 1_000_000) as store:
                if declared:
                    store.create("d", rows=rows, ttl_ms=ttl_ms)
                for puts in writes:
                    store.put_many("d", form(puts))
            held.append(entries(folder))
    assert held[0] == held[1]


def test_a_row_whose_time_to_live_was_withdrawn_never_expires_also_as_a_column(tmp_path):
    put, now_ms = Put(b"k", b"v", 7), [1_000]
    with LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0]) as store:
        store.create("d", rows="many", ttl_ms=1_000)
        store.create("d", rows="many")
        store.put_many("d", columns_of([put]))
        now_ms[0] = 1_000_000
        store.put_many("d", columns_of([]))
        assert store.get_many([Get("d", b"k")]) == [[TimedValue(7, b"v")]]


def test_a_slice_of_columns_is_written_and_not_what_is_beside_it(tmp_path):
    puts = [Put(b"%d" % number, b"v%d" % number, number) for number in range(9)]
    whole = columns_of(puts)
    part = ArrowPuts(
        *(column.slice(3, 2) for column in (whole.keys, whole.values, whole.times_ms, whole.keep_until_ms))
    )
    with LmdbStore(tmp_path, sync=False) as store:
        store.put_many("d", part)
        assert store.next_keys("d", None, 9) == [
            (b"3", [TimedValue(3, b"v3")]),
            (b"4", [TimedValue(4, b"v4")]),
        ]


def test_any_other_store_gets_a_put_for_each_row():
    puts = [Put(b"k", b"2", 2), Put(b"k", b"1", 1, keep_until_ms=9), Put(b"k", b"again", 2)]
    assert list(columns_of(puts)) == puts
    assert len(columns_of(puts)) == 3
    store = MemoryStore()
    store.put_many("d", columns_of(puts))
    assert store.get_many([Get("d", b"k")]) == [[TimedValue(1, b"1"), TimedValue(2, b"again")]]


def test_lmdb_makes_no_put_of_a_row_that_comes_as_columns(tmp_path, monkeypatch):
    def refuse(_):
        raise AssertionError("a Put for each row")

    columns = columns_of([Put(b"k", b"v", 1), Put(b"l", b"w", 2)])
    monkeypatch.setattr(ArrowPuts, "__iter__", refuse)
    with LmdbStore(tmp_path, sync=False) as store:
        store.create("d", rows="many", ttl_ms=60_000)
        store.put_many("d", columns)
        assert store.get_many([Get("d", b"l")]) == [[TimedValue(2, b"w")]]


def test_columns_are_encoded_before_a_writers_turn_and_anew_if_their_dataset_changed_meanwhile(tmp_path, monkeypatch):
    encode, calls = arrow_rows.encoded_columns, []
    with LmdbStore(tmp_path, sync=False) as store:
        store.create("d", rows="many", ttl_ms=60_000)
        write = store._open().write

        def turn(body):
            calls.append("turn")
            return write(body)

        def counted(*given):
            calls.append("encode")
            return encode(*given)

        monkeypatch.setattr(store._open(), "write", turn)
        monkeypatch.setattr(arrow_rows, "encoded_columns", counted)
        store.put_many("d", columns_of([Put(b"k", b"first", 1)]))
        assert calls == ["encode", "turn"]

        def changing(*given):
            monkeypatch.setattr(arrow_rows, "encoded_columns", counted)
            store.drop("d")
            store.create("d", rows="one", ttl_ms=60_000)
            calls.clear()
            return counted(*given)

        monkeypatch.setattr(arrow_rows, "encoded_columns", changing)
        store.put_many("d", columns_of([Put(b"k", b"second", 2)]))
        assert calls == ["encode", "turn", "encode"]
        assert store.get_many([Get("d", b"k")]) == [[TimedValue(2, b"second")]]


@pytest.mark.parametrize(
    "bad",
    [
        Put(b"k" * (MAX_KEY_BYTES + 1), b""),
        Put(b"k", b"", LAST + 1),
        Put(b"k", b"", FIRST - 1),
        Put(b"k", b"", 0, -1),
        Put(b"k", b"", 0, LAST + 1),
    ],
)
def test_a_row_beyond_the_limits_is_refused_in_the_words_that_a_put_gets(tmp_path, bad):
    puts, said = [Put(b"good", b"v"), bad], []
    with LmdbStore(tmp_path, sync=False) as store:
        for form in (list, columns_of):
            with pytest.raises(DataError) as refused:
                store.put_many("d", form(puts))
            said.append(str(refused.value))
        assert store.datasets() == []
    assert said[0] == said[1]


def test_a_dataset_name_beyond_the_limits_is_refused_for_columns_too(tmp_path):
    with LmdbStore(tmp_path, sync=False) as store, pytest.raises(DataError, match="dataset name"):
        store.put_many("", columns_of([]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"keys": pa.array(["k"])}, "keys of rows to write is an array of 1 string with 0 nulls; expected 1 binary"),
        ({"values": pa.array([None], pa.binary())}, "values .* 1 binary with 1 nulls; expected 1 binary without"),
        ({"times_ms": pa.array([1], pa.int32())}, "times_ms .* 1 int32 .* expected 1 int64"),
        ({"keep_until_ms": pa.array([0, 0])}, "keep_until_ms .* 2 int64 .* expected 1 int64"),
    ],
)
def test_columns_of_another_form_are_refused(changed, message):
    whole = {"keys": pa.array([b"k"]), "values": pa.array([b"v"]), "times_ms": pa.array([1])}
    with pytest.raises(DataError, match=message):
        ArrowPuts(**(whole | {"keep_until_ms": pa.array([0])} | changed))
