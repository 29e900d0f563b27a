"""What lies in the file of an LMDB store: the bytes of each version, and nothing of a row that went."""

import struct

import lmdb
import pytest

from millpond.kv import LmdbStore, Put
from millpond.kv.lmdb import layout as lmdb_layout
from tests.kv.lmdb_rows import entries, times


def test_the_layout_of_the_file_is_the_one_that_version_1_promises(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("tiles", [Put(b"EWR", b"value", 300_000)])
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert list(transaction.cursor()) == [
            (b"\x00format", b"\x01"),
            (b"\x01tiles", b"\x00\x00\x00\x01"),
            (b"\x03", b"\x00\x00\x00\x01"),
            (b"\x10\x00\x00\x00\x01\x00\x03EWR" + struct.pack(">Q", 300_000 + (1 << 63)), b"value"),
        ]


def test_the_layout_of_declared_datasets_is_the_one_that_version_2_promises(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.create("batch", rows="one")
    store.put_many("batch", [Put(b"EWR", b"row", 5)])
    store.close()
    assert entries(tmp_path) == [
        (b"\x00format", b"\x02"),
        (b"\x01batch", b"\x80\x00\x00\x01"),
        (b"\x03", b"\x00\x00\x00\x01"),
        (b"\x04\x80\x00\x00\x01", struct.pack(">QB", 0, 0)),
        (b"\x11\x80\x00\x00\x01\x00\x03EWR", struct.pack(">Q", 5 + (1 << 63)) + b"row"),
    ]


def test_what_layout_1_wrote_is_read_and_added_to(tmp_path):
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        for key, value in [
            (b"\x00format", b"\x01"),
            (b"\x01tiles", b"\x00\x00\x00\x01"),
            (b"\x03", b"\x00\x00\x00\x01"),
            (b"\x10\x00\x00\x00\x01\x00\x03EWR" + struct.pack(">Q", 7 + (1 << 63)), b"value"),
        ]:
            transaction.put(key, value)
    store = LmdbStore(tmp_path, sync=False)
    assert times(store, "tiles", b"EWR") == [7]
    store.create("batch", rows="one")
    store.put_many("batch", [Put(b"EWR", b"row", 9)])
    assert times(store, "batch", b"EWR") == [9]
    assert times(store, "tiles", b"EWR") == [7]
    store.close()


def test_a_drop_that_was_cut_short_is_finished_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_layout, "ROWS_PER_SWEEP", 10)
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v", time_ms) for time_ms in range(35)])
    with monkeypatch.context() as broken:
        broken.setattr(lmdb_layout, "sweep", lambda transaction: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.drop("d")
    assert store.datasets() == []
    assert times(store) == []
    store.put_many("d", [Put(b"k", b"new", 7)])
    store.drop("something else")
    assert times(store) == [7]
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        kinds = [key[0] for key, _ in transaction.cursor()]
    assert kinds.count(0x10) == 1
    assert kinds.count(0x02) == 0


def test_a_process_looks_for_rows_that_have_expired_where_the_one_before_stopped(tmp_path):
    now_ms = [0]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows="many", ttl_ms=1_000)
    store.put_many("d", [Put(b"first%d" % number, b"v", 0, keep_until_ms=9_000) for number in range(100)])
    store.put_many("d", [Put(b"second%d" % number, b"v") for number in range(100)])
    now_ms[0] = 1_000
    for _ in range(30):
        store.close()
        store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
        store.put_many("d", [Put(b"first0", b"v")])
    found = [key for key, _ in store.next_keys("d", None, 300)]
    assert sorted(found) == sorted(b"first%d" % number for number in range(100))
    store.drop("d")
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert [key for key, _ in transaction.cursor()] == [b"\x00format", b"\x03"]


@pytest.mark.parametrize("rows", ["one", "many"])
def test_nothing_of_a_row_is_left_after_it_expired_or_was_deleted_or_dropped(tmp_path, rows):
    now_ms = [0]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows=rows, ttl_ms=1_000)
    store.put_many("d", [Put(b"%d" % number, b"v", number) for number in range(100)])
    now_ms[0] = 999
    store.put_many("d", [Put(b"deleted", b"v")])
    now_ms[0] = 1_000
    for number in range(10):
        store.put_many("d", [Put(b"later%d" % number, b"v")])
    store.delete_keys("d", [b"deleted"])
    assert sorted(key for key, _ in store.next_keys("d", None, 200)) == [b"later%d" % number for number in range(10)]
    store.drop("d")
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert [key for key, _ in transaction.cursor()] == [b"\x00format", b"\x03"]
