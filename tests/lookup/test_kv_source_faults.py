"""What sources in KV stores do when something is wrong: a typed error that says what, and never a missing row."""

from contextlib import closing
from decimal import Decimal

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.kv import Get, LmdbStore, MemoryStore, Put
from millpond.lookup import (
    DefaultLookupCache,
    KvLookup,
    PartialCachingLookup,
    Retries,
    write_kv_table,
)

CODE = pa.schema([("code", pa.string())])
GATE = pa.schema([("gate", pa.int64())])


def no_wait(max_retries=2):
    return Retries(max_retries, sleep=lambda _: None)


def test_no_bit_of_a_stored_row_can_be_flipped_unnoticed():
    store, table = MemoryStore(), pa.table({"code": ["JFK"], "gate": pa.array([7], pa.int64())})
    write_kv_table(store, "gates", table, ["code"])
    ((row,),) = store.get_many([Get("gates", b"\x91\xa3JFK")])
    lookup = KvLookup(store, "gates", CODE, GATE)
    assert lookup.lookup(("JFK",)) == [(7,)]
    for bit in range(8 * len(row.value)):
        altered = bytearray(row.value)
        altered[bit // 8] ^= 1 << bit % 8
        store.put_many("gates", [Put(b"\x91\xa3JFK", bytes(altered))])
        with pytest.raises((CorruptionError, DataError), match="KV dataset 'gates'"):
            lookup.lookup(("JFK",))
    store.put_many("gates", [Put(b"\x91\xa3EWR", row.value)])
    with pytest.raises(CorruptionError, match="of another key"):
        lookup.lookup(("EWR",))


def test_a_row_of_format_1_is_still_read():
    store = MemoryStore()
    store.put_many("gates", [Put(b"\x91\xa3JFK", b"\x92\x91\xa4gate\x91\x91\x07")])
    assert KvLookup(store, "gates", CODE, GATE).lookup(("JFK",)) == [(7,)]


def test_a_dataset_with_other_columns_or_other_bytes_is_refused():
    store = MemoryStore()
    write_kv_table(store, "gates", pa.table({"code": ["JFK"], "terminal": ["T4"]}), ["code"])
    with pytest.raises(DataError, match=r"'gates'.*\['gate'\].*\['terminal'\]"):
        KvLookup(store, "gates", CODE, GATE).lookup(("JFK",))
    store.put_many("other", [Put(b"\x91\xa3JFK", b"\xff")])
    with pytest.raises(DataError, match="write_kv_table"):
        KvLookup(store, "other", CODE, GATE).lookup(("JFK",))


def test_a_closed_store_is_unavailable_and_no_missing_row():
    store = MemoryStore()
    lookup = PartialCachingLookup(
        KvLookup(store, "gates", CODE, GATE), DefaultLookupCache(max_rows=1), retries=no_wait()
    )
    store.close()
    with pytest.raises(UnavailableError, match="closed"):
        lookup.lookup(("JFK",))


def test_rows_written_again_replace_those_of_their_key_only():
    store = MemoryStore()
    write_kv_table(store, "gates", pa.table({"code": ["JFK", "JFK", "LGA", None], "gate": [1, 2, 3, 4]}), ["code"])
    write_kv_table(store, "gates", pa.table({"code": ["JFK"], "gate": [9]}), ["code"])
    assert KvLookup(store, "gates", CODE, GATE).lookup_many([("JFK",), ("LGA",)]) == {
        ("JFK",): [(9,)],
        ("LGA",): [(3,)],
    }


def test_a_store_that_cannot_be_walked_over_cannot_be_cached_in_full():
    class Plain:
        """A store of somebody else's: what `KVStore` asks for and no more."""

        put_many = get_many = drop = datasets = close = None

    with pytest.raises(OptionError, match=r"'gates'.*Plain cannot be walked over.*PARTIAL"):
        KvLookup(Plain(), "gates", CODE, GATE).scan()


@pytest.mark.parametrize(
    ("key_type", "there", "never_written"),
    [
        (pa.int64(), 7, 1 << 70),
        (pa.string(), "JFK", "\ud800"),
        (pa.string(), "JFK", "J" * 70_000),
        (pa.decimal128(9, 2), Decimal("1.50"), Decimal("1E+100")),
    ],
)
def test_a_key_that_cannot_have_been_written_has_no_rows_and_its_batch_has_its_own(
    key_type, there, never_written, tmp_path
):
    with closing(LmdbStore(tmp_path)) as store:
        write_kv_table(store, "gates", pa.table({"key": pa.array([there], key_type), "gate": [7]}), ["key"])
        lookup = KvLookup(store, "gates", pa.schema([("key", key_type)]), GATE)
        assert lookup.lookup_many([(never_written,), (there,)]) == {(never_written,): [], (there,): [(7,)]}
