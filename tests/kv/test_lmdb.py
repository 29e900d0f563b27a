"""What only the LMDB store owes: processes, forks, growth, full disks, foreign files."""

import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError
from millpond.kv import Get, LmdbStore, MemoryStore, Put, lmdb_environment, lmdb_layout
from millpond.kv.readers_writer_lock import ReadersWriterLock

MIB = 1 << 20


def times(store, dataset="d", key=b"k"):
    return [row.time_ms for row in store.get_many([Get(dataset, key)])[0]]


def write_from_a_child(store, size, done):
    for time_ms in range(20):
        store.put_many("d", [Put(b"k", b"x" * size, time_ms), Put(b"twin", b"x", time_ms)])
    done.put(store.datasets())
    store.close()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_writes_while_the_parent_reads(tmp_path, method):
    context = multiprocessing.get_context(method)
    with_child = LmdbStore(tmp_path, map_bytes=MIB, sync=False)
    with_child.put_many("d", [Put(b"k", b"", -1), Put(b"twin", b"", -1)])
    done = context.Queue()
    child = context.Process(target=write_from_a_child, args=(with_child, 200_000, done))
    child.start()
    while child.is_alive():
        row, twin = with_child.get_many([Get("d", b"k"), Get("d", b"twin")])
        assert len(row) == len(twin)
        child.join(0.01)
    assert done.get(timeout=20) == ["d"]
    assert child.exitcode == 0
    assert times(with_child) == list(range(-1, 20))
    # The parent's map was made for 1 MiB and the child's writes have outgrown it: both go on.
    with_child.put_many("d", [Put(b"k", b"after", 99)])
    assert times(with_child)[-1] == 99
    with_child.close()


def test_a_forked_child_that_never_touches_the_store_leaves_the_parents_alone(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v", 1)])
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(20)
    assert child.exitcode == 0
    store.put_many("d", [Put(b"k", b"v", 2)])
    assert times(store) == [1, 2]
    store.close()


def test_a_pickled_store_is_the_same_store_and_may_be_open_twice_in_one_process(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v", 1)])
    twin = pickle.loads(pickle.dumps(store))
    assert times(twin) == [1]
    store.close()
    twin.put_many("d", [Put(b"k", b"v", 2)])
    assert times(twin) == [1, 2]
    twin.close()
    again = LmdbStore(str(tmp_path))
    assert times(again) == [1, 2]
    again.close()


def test_a_store_that_was_forgotten_gives_its_files_back(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [])
    del store
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert transaction.get(b"\x01d") is not None


def test_a_memory_store_refuses_to_be_sent_away():
    with pytest.raises(OptionError, match="LmdbStore"):
        pickle.dumps(MemoryStore())


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


def run_child(code: str, *args: str) -> str:
    child = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout


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


KILLED = """
import os, signal, sys
from millpond.kv import LmdbStore, Put
store = LmdbStore(sys.argv[1])
store.put_many("d", [Put(b"k", b"v", 1)])
def puts():
    yield Put(b"k", b"v", 2)
    os.kill(os.getpid(), signal.SIGKILL)
print("committed", flush=True)
store.put_many("d", puts())
"""


def test_what_a_killed_process_had_committed_is_there_and_the_rest_is_not(tmp_path):
    child = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b"committed\n"
    store = LmdbStore(tmp_path)
    assert times(store) == [1]
    store.close()


KILLED_INSIDE = """
import os, signal, sys
from millpond.kv import LmdbStore, Put
from millpond.kv import lmdb_layout as module
store = LmdbStore(sys.argv[1])
store.put_many("d", [Put(b"k", b"v", 1)])
inside = module.entered
def die(transaction, name):
    transaction.put(b"\\x10half", b"written")
    os.kill(os.getpid(), signal.SIGKILL)
module.entered = die
store.put_many("d", [Put(b"k", b"v", 2)])
"""


def test_a_writer_that_is_killed_inside_its_transaction_leaves_no_trace_and_no_lock(tmp_path):
    store = LmdbStore(tmp_path)
    store.put_many("d", [Put(b"k", b"v", 0)])
    child = subprocess.run([sys.executable, "-c", KILLED_INSIDE, str(tmp_path)], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    assert times(store) == [0, 1]
    store.put_many("d", [Put(b"k", b"v", 3)])
    assert times(store) == [0, 1, 3]
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert transaction.get(b"\x10half") is None


def test_a_fork_waits_until_no_transaction_is_open(tmp_path, monkeypatch):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v", 0)])
    inside, forking = threading.Event(), threading.Event()
    write = lmdb_layout.entered

    def slow(transaction, name):
        inside.set()
        assert forking.wait(20)
        return write(transaction, name)

    monkeypatch.setattr(lmdb_layout, "entered", slow)
    writer = threading.Thread(target=store.put_many, args=("d", [Put(b"k", b"v", 1)]))
    writer.start()
    assert inside.wait(20)
    monkeypatch.setattr(lmdb_layout, "entered", write)
    acquire = ReadersWriterLock.acquire_exclusive

    def told(lock):
        forking.set()
        acquire(lock)

    monkeypatch.setattr(ReadersWriterLock, "acquire_exclusive", told)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert times(store) == [0, 1]
            store.put_many("d", [Put(b"k", b"v", 2)])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    writer.join(20)
    assert times(store) == [0, 1, 2]
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
    store = LmdbStore(tmp_path, sync=False, clock=lambda: 1_000_000)
    store.create("batch", rows="one")
    store.put_many("batch", [Put(b"EWR", b"row", 5)])
    store.create("tiles", rows="many", ttl_ms=60_000)
    store.put_many("tiles", [Put(b"EWR", b"tile", 300_000)])
    store.close()
    time = struct.pack(">Q", 300_000 + (1 << 63))
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert list(transaction.cursor()) == [
            (b"\x00format", b"\x02"),
            (b"\x01batch", b"\x80\x00\x00\x01"),
            (b"\x01tiles", b"\x00\x00\x00\x02"),
            (b"\x03", b"\x00\x00\x00\x02"),
            (b"\x04\x00\x00\x00\x02", struct.pack(">QB", 60_000, 1)),
            (b"\x04\x80\x00\x00\x01", struct.pack(">QB", 0, 0)),
            (b"\x10\x00\x00\x00\x02\x00\x03EWR" + time, b"tile"),
            (b"\x11\x80\x00\x00\x01\x00\x03EWR", struct.pack(">Q", 5 + (1 << 63)) + b"row"),
            (b"\x12\x00\x00\x00\x02\x00\x03EWR" + time, struct.pack(">Q", 1_060_000)),
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


def test_an_environment_that_something_else_wrote_is_refused_and_left_alone(tmp_path):
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"theirs", b"x")
    store = LmdbStore(tmp_path)
    with pytest.raises(CorruptionError, match="not Millpond's layout"):
        store.put_many("d", [Put(b"k", b"v")])
    store.close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert list(transaction.cursor()) == [(b"theirs", b"x")]


def test_a_file_that_is_no_lmdb_is_a_corruption_that_names_it(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"not lmdb" * 4096)
    with pytest.raises(CorruptionError, match=str(tmp_path)):
        LmdbStore(tmp_path).datasets()


def test_a_path_that_is_a_file_is_unavailable_and_named(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(UnavailableError, match=str(path)):
        LmdbStore(path).datasets()


def test_two_durabilities_of_one_path_in_one_process_are_refused(tmp_path):
    durable = LmdbStore(tmp_path)
    durable.datasets()
    with pytest.raises(OptionError, match="sync=True, asked was sync=False"):
        LmdbStore(tmp_path, sync=False).datasets()
    durable.close()


def test_a_map_that_is_too_small_to_start_with_is_refused():
    with pytest.raises(OptionError, match="map_bytes is 1;"):
        LmdbStore("anywhere", map_bytes=1)


def test_without_lmdb_the_error_has_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'millpond\[lmdb\]'"):
        LmdbStore(tmp_path).datasets()


def test_importing_the_package_does_not_import_lmdb():
    code = "import sys, millpond.kv; print('lmdb' in sys.modules)"
    assert run_child(code).strip() == "False"


def test_a_store_used_in_a_child_outlives_the_child(tmp_path):
    store = LmdbStore(Path(os.fspath(tmp_path)), sync=False)
    store.put_many("d", [Put(b"k", b"v", 0)])
    for number in range(1, 4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                store.put_many("d", [Put(b"k", b"v", number)])
                store.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert times(store) == list(range(number + 1))
    store.close()


def test_a_store_that_two_threads_open_at_once_gives_its_files_back_when_closed(tmp_path, monkeypatch):
    check, together = lmdb_layout.check_format, threading.Barrier(2)

    def checked_together(transaction, path):
        together.wait(20)
        check(transaction, path)

    monkeypatch.setattr(lmdb_layout, "check_format", checked_together)
    store = LmdbStore(tmp_path, sync=False)
    readers = [threading.Thread(target=store.datasets) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    monkeypatch.undo()
    store.close()
    # The environment is unused, so its durability may change.
    with closing(LmdbStore(tmp_path, sync=True)) as other:
        assert other.datasets() == []
