"""An LMDB store that grows until its map, the disk, the address space or the table of readers is full."""

import threading

import pytest

from millpond.errors import UnavailableError
from millpond.kv import Get, LmdbStore, Put
from millpond.kv.lmdb import environment as lmdb_environment
from millpond.kv.lmdb import layout as lmdb_layout
from tests.kv.lmdb_rows import MIB, run_child, times


def test_the_map_grows_until_a_large_write_fits_and_takes_effect_once(tmp_path):
    store = LmdbStore(tmp_path, map_bytes=MIB, sync=False)
    store.put_many("d", [Put(b"k", bytes([time_ms]) * MIB, time_ms) for time_ms in range(20)])
    assert [(row.time_ms, row.value[0], len(row.value)) for row in store.get_many([Get("d", b"k")])[0]] == [
        (time_ms, time_ms, MIB) for time_ms in range(20)
    ]
    store.close()


def test_threads_read_on_while_the_map_grows(tmp_path):
    store = LmdbStore(tmp_path, map_bytes=MIB, sync=False)
    store.put_many("d", [Put(b"k", b"v", 0)])
    stop = threading.Event()
    failures = []

    def read():
        # py-lmdb's own lock is not handed out in turn: without a pause the writer would wait for seconds.
        while not stop.wait(0.001):
            try:
                assert times(store) == [0]
            except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
                failures.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(12):
        store.put_many("ballast", [Put(b"%d" % number, b"x" * MIB)])
    stop.set()
    for reader in readers:
        reader.join(20)
    assert failures == []
    store.close()


FULL_DISK = """
import resource, signal, sys
from millpond.errors import UnavailableError
from millpond.kv import Get, LmdbStore, Put
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LmdbStore(sys.argv[1])
store.put_many("d", [Put(b"k", b"before", 1)])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
try:
    store.put_many("d", [Put(b"k", b"x" * (1 << 22), 2)])
except UnavailableError as error:
    print(error)
print([row.time_ms for row in store.get_many([Get("d", b"k")])[0]])
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.put_many("d", [Put(b"k", b"x" * (1 << 22), 3)])
print([row.time_ms for row in store.get_many([Get("d", b"k")])[0]])
"""

FULL_UPLOAD = """
import resource, signal, sys
from millpond.errors import UnavailableError
from millpond.kv import Get, LmdbStore, Put
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LmdbStore(sys.argv[1])
store.put_many("info", [Put(b"group_by", b"former upload")])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, hard))
try:
    store.create("upload", rows="one")
    store.bulk_put("upload", (Put(b"%08d" % number, b"x" * 1000) for number in range(300_000)))
    store.put_many("info", [Put(b"group_by", b"this upload")])
except UnavailableError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(store.get_many([Get("info", b"group_by")])[0][0].value)
store.drop("upload")
print(store.datasets())
"""


def test_a_full_disk_names_the_path_keeps_what_was_there_and_goes_on_once_there_is_space(tmp_path):
    message, before, after = run_child(FULL_DISK, str(tmp_path)).splitlines()
    assert f"LMDB in {tmp_path} failed" in message
    assert "check space" in message
    assert (before, after) == ("[1]", "[1, 3]")


def test_an_upload_to_a_disk_that_is_full_fails_as_a_whole(tmp_path):
    message, served, left = run_child(FULL_UPLOAD, str(tmp_path)).splitlines()
    assert f"LMDB in {tmp_path} failed" in message
    assert (served, left) == ("b'former upload'", "['info']")


NO_ADDRESS_SPACE = """
import resource, sys
from millpond.errors import UnavailableError
from millpond.kv import Get, LmdbStore, Put
store = LmdbStore(sys.argv[1], map_bytes=1 << 20, sync=False)
store.put_many("d", [Put(b"k", b"v", 1)])
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
written = 1
try:
    for number in range(60):
        store.put_many("ballast", [Put(b"%d" % number, b"x" * (2 << 20))])
        written += 1
except UnavailableError as error:
    print(error)
print(1 < written < 60, [row.time_ms for row in store.get_many([Get("d", b"k")])[0]])
"""


def test_a_map_that_may_not_grow_says_so_and_keeps_what_was_there(tmp_path):
    message, outcome = run_child(NO_ADDRESS_SPACE, str(tmp_path)).splitlines()
    assert f"the LMDB map of {tmp_path} does not fit into the address space" in message
    assert "spark.executor.pyspark.memory" in message
    assert outcome == "True [1]"


def test_more_readers_than_lmdb_has_room_for_are_a_typed_error_and_the_next_one_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_environment, "_MAX_READERS", 1)
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v", 1)])
    inside, leave = threading.Event(), threading.Event()

    def occupy(transaction, gets):
        inside.set()
        assert leave.wait(20)
        return []

    read = lmdb_layout.read_many
    monkeypatch.setattr(lmdb_layout, "read_many", occupy)
    reader = threading.Thread(target=store.get_many, args=([],))
    reader.start()
    assert inside.wait(20)
    monkeypatch.setattr(lmdb_layout, "read_many", read)
    with pytest.raises(UnavailableError, match="READERS_FULL"):
        times(store)
    leave.set()
    reader.join(20)
    assert times(store) == [1]
    store.close()
