"""How rows of the LMDB store expire, and the bytes of layout 3, which rows with a time to live have."""

import struct

import lmdb
import msgspec
import pytest

from millpond.errors import CorruptionError
from millpond.kv import Get, LmdbStore, Put, TimedValue
from millpond.kv.lmdb import expiry as lmdb_expiry
from millpond.kv.lmdb import layout as lmdb_layout
from tests.kv.lmdb_rows import entries, times


def test_the_layout_of_rows_that_expire_is_the_one_that_version_3_promises(tmp_path):
    store = LmdbStore(tmp_path, sync=False, clock=lambda: 1_000_000)
    store.create("tiles", rows="many", ttl_ms=60_000)
    store.create("batch", rows="one", ttl_ms=60_000)
    store.put_many("tiles", [Put(b"EWR", b"tile", 300_000), Put(b"JFK", b"other", 300_000)])
    store.put_many("tiles", [Put(b"EWR", b"late", 300_000, keep_until_ms=2_000_000)])
    store.put_many("batch", [Put(b"EWR", b"row", 5)])
    store.create("tiles", rows="many")
    store.put_many("tiles", [Put(b"LGA", b"kept", 300_000)])
    store.close()
    time = struct.pack(">Q", 300_000 + (1 << 63))
    soon, later = struct.pack(">Q", 1_060_000), struct.pack(">Q", 2_000_000)
    ewr, jfk, lga = (b"\x10\x40\x00\x00\x01\x00\x03" + key + time for key in (b"EWR", b"JFK", b"LGA"))
    row = b"\x11\xc0\x00\x00\x02\x00\x03EWR"
    assert entries(tmp_path) == [
        (b"\x00format", b"\x03"),
        (b"\x01batch", b"\xc0\x00\x00\x02"),
        (b"\x01tiles", b"\x40\x00\x00\x01"),
        (b"\x03", b"\x00\x00\x00\x02"),
        (b"\x04\x40\x00\x00\x01", struct.pack(">QB", 0, 1)),
        (b"\x04\xc0\x00\x00\x02", struct.pack(">QB", 60_000, 1)),
        (ewr, later + b"late"),
        (jfk, soon + b"other"),
        (lga, bytes(8) + b"kept"),
        (row, soon + struct.pack(">Q", 5 + (1 << 63)) + b"row"),
        (b"\x13\x40\x00\x00\x01" + soon + bytes(4), msgspec.msgpack.encode([ewr, jfk])),
        (b"\x13\xc0\x00\x00\x02" + soon + bytes(4), msgspec.msgpack.encode([row])),
    ]


LAYOUT_2 = [
    (b"\x00format", b"\x02"),
    (b"\x01tiles", b"\x00\x00\x00\x01"),
    (b"\x03", b"\x00\x00\x00\x01"),
    (b"\x04\x00\x00\x00\x01", struct.pack(">QB", 60_000, 1)),
    (b"\x05\x00\x00\x00\x01", b"\x12\x00\x00\x00\x01\x00\x03EWR"),
    (b"\x10\x00\x00\x00\x01\x00\x03EWR" + struct.pack(">Q", 7 + (1 << 63)), b"older than the time to live"),
    (b"\x10\x00\x00\x00\x01\x00\x03EWR" + struct.pack(">Q", 9 + (1 << 63)), b"expires"),
    (b"\x12\x00\x00\x00\x01\x00\x03EWR" + struct.pack(">Q", 9 + (1 << 63)), struct.pack(">Q", 1_060_000)),
]
"""A dataset of layout 2 with a time to live, one row of which was written before it had one."""


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put_many("tiles", []),
        lambda store: store.delete_keys("tiles", [b"JFK"]),
        lambda store: store.create("tiles", rows="many", ttl_ms=60_000),
        lambda store: store.create("tiles", rows="many"),
    ],
    ids=["put", "delete", "declare", "declare without"],
)
def test_what_layout_2_wrote_is_read_and_expires_when_it_said(tmp_path, write):
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        for key, value in LAYOUT_2:
            transaction.put(key, value)
    now_ms = [1_000_000]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    before = store.next_keys("tiles", None, 9)
    assert times(store, "tiles", b"EWR") == [7, 9]
    write(store)
    assert store.next_keys("tiles", None, 9) == before
    assert times(store, "tiles", b"EWR") == [7, 9]
    now_ms[0] = 1_060_000
    store.put_many("tiles", [])
    assert times(store, "tiles", b"EWR") == [7]
    store.drop("tiles")
    store.close()
    assert [key for key, _ in entries(tmp_path)] == [b"\x00format", b"\x03"]


def test_rows_stay_when_their_dataset_gets_a_time_to_live(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_layout, "ROWS_PER_SWEEP", 10)
    now_ms = [1_000]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows="one")
    store.put_many("d", [Put(b"%02d" % number, b"old", number) for number in range(35)])
    store.put_many("other", [Put(b"k", b"v", 7)])
    before = store.next_keys("d", None, 99)
    store.create("d", rows="one", ttl_ms=1_000)
    assert store.next_keys("d", None, 99) == before
    store.put_many("d", [Put(b"new", b"new")])
    now_ms[0] = 2_000
    store.put_many("d", [])
    assert store.next_keys("d", None, 99) == before
    assert times(store, "other", b"k") == [7]
    store.close()


def test_many_rows_that_expire_together_are_all_removed_a_piece_of_the_log_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_expiry, "_ADDRESSES_A_PIECE", 10)
    now_ms = [0]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows="many", ttl_ms=1_000)
    for first in range(0, 200, 50):
        store.put_many("d", [Put(b"%03d" % number, b"v") for number in range(first, first + 50)])
    now_ms[0] = 1_000
    left = []
    while not left or left[-1]:
        store.put_many("d", [])
        left.append(len(store.next_keys("d", None, 300)))
    store.close()
    assert left == list(range(180, -1, -20))
    assert not [key for key, _ in entries(tmp_path) if key[:1] == b"\x13"]


def test_a_row_that_was_written_again_stays_as_long_as_the_last_write_says(tmp_path):
    now_ms = [0]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows="many", ttl_ms=1_000)
    for key, until_ms in ((b"longer", 0), (b"shorter", 5_000), (b"for ever", 0)):
        store.put_many("d", [Put(key, b"first", keep_until_ms=until_ms)])
    store.put_many("d", [Put(b"longer", b"second", keep_until_ms=5_000), Put(b"shorter", b"second")])
    store.create("d", rows="many")
    store.put_many("d", [Put(b"for ever", b"second")])
    found = []
    for now_ms[0] in (999, 1_000, 4_999, 5_000):
        store.put_many("d", [])
        found.append([key for key, _ in store.next_keys("d", None, 9)])
    store.close()
    assert found == [[b"longer", b"shorter", b"for ever"], *2 * [[b"longer", b"for ever"]], [b"for ever"]]


def test_a_row_that_is_written_again_and_again_is_in_the_log_once(tmp_path):
    now_ms = [0]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows="many", ttl_ms=1_000)
    for now_ms[0] in range(0, 4_000, 100):
        store.put_many("d", [Put(b"k", b"v"), Put(b"sooner", b"v", keep_until_ms=9_000 - now_ms[0])])
    store.close()
    logged = [msgspec.msgpack.decode(value) for key, value in entries(tmp_path) if key[:1] == b"\x13"]
    assert sum(address.endswith(b"k" + struct.pack(">Q", 1 << 63)) for piece in logged for address in piece) == 1
    # One that expires sooner with each write is logged each time.
    assert sum(b"sooner" in address for piece in logged for address in piece) == 40


def test_an_altered_log_of_expiries_is_reported(tmp_path):
    now_ms = [0]
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    store.create("d", rows="many", ttl_ms=1_000)
    store.put_many("d", [Put(b"k", b"v")])
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        [place] = [key for key, _ in transaction.cursor() if key[:1] == b"\x13"]
        transaction.put(place, b"\xff")
    now_ms[0] = 1_000
    store = LmdbStore(tmp_path, sync=False, clock=lambda: now_ms[0])
    with pytest.raises(CorruptionError, match="log of expiries"):
        store.put_many("d", [Put(b"l", b"v")])
    assert [key for key, _ in store.next_keys("d", None, 9)] == [b"k"]
    store.close()


def test_rows_are_encoded_anew_if_their_dataset_changed_meanwhile(tmp_path, monkeypatch):
    encode = lmdb_layout.encoded_rows
    with LmdbStore(tmp_path) as store:
        store.put_many("d", [Put(b"k", b"first", 1)])

        def changing(*given):
            monkeypatch.setattr(lmdb_layout, "encoded_rows", encode)
            store.drop("d")
            store.create("d", rows="one", ttl_ms=1_000_000)
            return encode(*given)

        monkeypatch.setattr(lmdb_layout, "encoded_rows", changing)
        store.put_many("d", [Put(b"k", b"second", 2)])
        assert store.get_many([Get("d", b"k")]) == [[TimedValue(2, b"second")]]
