"""Stores that nobody closed: a collection may find them at any moment, in any thread."""

import gc
import os
import threading

import pytest

from millpond.kv import Get, LmdbStore, Put
from millpond.kv.lmdb import environment as lmdb_environment
from millpond.kv.lmdb import layout as lmdb_layout

PATIENCE_S = 20


def forgotten(path):
    """Leave an open store to the garbage collector."""
    store = LmdbStore(path, sync=False)
    store.put_many("d", [Put(b"k", b"v", 0)])
    store.itself = store


def environment_of(path):
    return lmdb_environment._registry[str(path.resolve())]


def in_a_thread(act):
    """Run something that may wait for itself."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(act()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert ended, "it waits for itself"
    return ended[0]


@pytest.fixture
def collected_in_transactions(monkeypatch):
    """Collects garbage in each read of rows."""
    read = lmdb_layout.read_many

    def collecting(transaction, gets):
        gc.collect()
        return read(transaction, gets)

    monkeypatch.setattr(lmdb_layout, "read_many", collecting)


@pytest.mark.usefixtures("collected_in_transactions")
def test_a_store_that_is_collected_in_a_read_of_its_path_does_not_stop_the_read(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [])
    gc.collect()
    forgotten(tmp_path)
    rows = in_a_thread(lambda: store.get_many([Get("d", b"k")]))
    assert [row.value for row in rows[0]] == [b"v"]
    store.close()
    assert environment_of(tmp_path)._handle is None


@pytest.mark.usefixtures("collected_in_transactions")
def test_the_last_store_that_is_collected_in_a_transaction_is_closed_after_it(tmp_path):
    forgotten(tmp_path)
    environment = environment_of(tmp_path)
    rows = in_a_thread(lambda: environment.read_with(lmdb_layout.read_many, [Get("d", b"k")]))
    assert [row.value for row in rows[0]] == [b"v"]
    assert environment.is_unused
    assert environment._handle is None


def test_a_store_that_is_collected_while_the_environment_is_held_alone_is_closed_by_the_next_transaction(tmp_path):
    forgotten(tmp_path)
    environment = environment_of(tmp_path)

    def held_alone():
        with environment.transactions.exclusive():
            gc.collect()
        return True

    assert in_a_thread(held_alone)
    assert environment._handle is not None
    environment.read(lambda _: None)
    assert environment._handle is None
    again = LmdbStore(tmp_path, sync=False)
    assert again.datasets() == ["d"]
    again.close()


@pytest.mark.usefixtures("collected_in_transactions")
def test_a_fork_and_a_collection_in_a_transaction_do_not_wait_for_each_other(tmp_path, monkeypatch):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v", 0)])
    inside, forking = threading.Event(), threading.Event()
    collecting = lmdb_layout.read_many

    def slow(transaction, gets):
        inside.set()
        assert forking.wait(PATIENCE_S)
        return collecting(transaction, gets)

    monkeypatch.setattr(lmdb_layout, "read_many", slow)
    forgotten(tmp_path)
    reader = threading.Thread(target=store.get_many, args=([Get("d", b"k")],), daemon=True)
    reader.start()
    assert inside.wait(PATIENCE_S)
    threading.Timer(0.2, forking.set).start()

    def fork():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        return os.waitpid(pid, 0)[1] == 0

    assert in_a_thread(fork)
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    store.close()
