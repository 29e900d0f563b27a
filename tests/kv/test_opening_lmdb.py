"""What an LMDB store refuses to open, and when it lets go of what it has open."""

import sys
import threading
from contextlib import closing

import lmdb
import pytest

from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError
from millpond.kv import Get, LmdbStore, Put
from millpond.kv.lmdb import layout as lmdb_layout
from millpond.kv.lmdb.environment import Environment
from tests.kv.lmdb_rows import run_child


def test_a_store_that_was_forgotten_gives_its_files_back(tmp_path):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [])
    del store
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert transaction.get(b"\x01d") is not None


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


@pytest.mark.parametrize("act", ["read", "write"])
def test_a_call_that_began_before_the_last_store_was_closed_does_not_open_the_files_again(tmp_path, monkeypatch, act):
    store = LmdbStore(tmp_path, sync=False)
    store.put_many("d", [Put(b"k", b"v")])
    name = {"read": "read_with", "write": "write"}[act]
    run = getattr(Environment, name)

    def run_after_a_close(environment, *arguments):
        monkeypatch.undo()
        store.close()
        return run(environment, *arguments)

    monkeypatch.setattr(Environment, name, run_after_a_close)
    with pytest.raises(UnavailableError, match="is closed"):
        store.get_many([Get("d", b"k")]) if act == "read" else store.delete_keys("d", [b"k"])
    # LMDB refuses to open files twice in one process.
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert transaction.get(b"\x01d") is not None
    with LmdbStore(tmp_path, sync=False) as again:
        assert [row.value for row in again.get_many([Get("d", b"k")])[0]] == [b"v"]
