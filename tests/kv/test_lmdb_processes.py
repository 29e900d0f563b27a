"""An LMDB store in several processes: children, forks, copies by pickle, and processes that are killed."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest

from millpond.errors import OptionError
from millpond.kv import Get, LmdbStore, MemoryStore, Put
from millpond.kv.lmdb import layout as lmdb_layout
from millpond.kv.readers_writer_lock import ReadersWriterLock
from tests.kv.lmdb_rows import MIB, times


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


def test_a_memory_store_refuses_to_be_sent_away():
    with pytest.raises(OptionError, match="LmdbStore"):
        pickle.dumps(MemoryStore())


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
from millpond.kv.lmdb import layout as module
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
