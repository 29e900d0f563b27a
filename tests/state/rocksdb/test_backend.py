"""What is RocksDB's own: how versions are made of its snapshots, its files, and how it fails.

What every backend does is tested by the conformance suite.
"""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError
from millpond.state.backend.protocols import Cells
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import ABSENT, StateDescriptor, StateKind

COUNT = pa.schema([("count", pa.int64())])
TEXT = pa.schema([("text", pa.string())])
NUMBERS = pa.schema([("numbers", pa.list_(pa.int64()))])
VALUE = StateDescriptor("visits", StateKind.VALUE, COUNT)
LIST = StateDescriptor("times", StateKind.LIST, COUNT)
MAP = StateDescriptor("pages", StateKind.MAP, COUNT, TEXT)


@pytest.fixture
def backend(tmp_path):
    backend = RocksDbBackend(range(4), tmp_path / "state", write_buffer_bytes=1 << 16)
    yield backend
    backend.close()


def at(backend, key, key_group=1):
    backend.enter(key_group)
    backend.context.key = (key,)


def changed(snapshot):
    """The delta as a dict: state -> {(key group, key, map key): value}."""
    found = {}
    for name, cells in snapshot.changes():
        map_keys = cells.map_keys or [None] * len(cells)
        rows = zip(cells.key_groups, cells.keys, map_keys, cells.values, strict=True)
        found.setdefault(name, {}).update({(group, key, map_key): value for group, key, map_key, value in rows})
    return found


class Calls:
    """Stands before rocksdict's handle and counts."""

    def __init__(self, inner):
        self._inner = inner
        self.counts = dict.fromkeys(("get", "put", "delete", "snapshot"), 0)

    def get(self, key):
        self.counts["get"] += 1
        return self._inner.get(key)

    def __setitem__(self, key, value):
        self.counts["put"] += 1
        self._inner[key] = value

    def __delitem__(self, key):
        self.counts["delete"] += 1
        del self._inner[key]

    def snapshot(self):
        self.counts["snapshot"] += 1
        return self._inner.snapshot()

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.fixture
def calls(backend):
    backend._database.handle = Calls(backend._database.handle)
    return backend._database.handle.counts


def test_an_update_does_not_read_and_a_count_costs_one_get_and_one_put(backend, calls):
    visits = backend.value_state(VALUE)
    at(backend, "ann")
    visits.update((1,))
    assert calls == {"get": 0, "put": 1, "delete": 0, "snapshot": 0}
    visits.update((visits.get()[0] + 1,))
    assert calls == {"get": 1, "put": 2, "delete": 0, "snapshot": 0}


def test_a_commit_takes_a_snapshot_and_neither_reads_nor_writes(backend, calls):
    visits, pages = backend.value_state(VALUE), backend.map_state(MAP)
    for number in range(100):
        at(backend, f"user {number}")
        visits.update((number,))
        pages.put(("home",), (number,))
    before = dict(calls)
    backend.commit()
    assert calls == before | {"snapshot": 1}


def test_a_snapshot_is_read_by_another_thread_while_later_versions_are_made(backend):
    visits = backend.value_state(VALUE)
    for number in range(200):
        at(backend, f"user {number}", number % 4)
        visits.update((number,))
    first = backend.commit()
    found = {}
    reader = threading.Thread(target=lambda: found.update(changed(first)))
    reader.start()
    for number in range(200):
        at(backend, f"user {number}", number % 4)
        visits.update((-1,))
    second = backend.commit()
    reader.join()
    assert found == {"visits": {(n % 4, (f"user {n}",), None): (n,) for n in range(200)}}
    assert set(changed(second)["visits"].values()) == {(-1,)}
    assert sorted(first.cells("visits", 1).values) == [(number,) for number in range(1, 200, 4)]
    assert second.cells("visits", 1).values == [(-1,)] * 50


def test_a_snapshot_still_has_what_was_deleted_since_and_not_what_is_new(backend):
    pages = backend.map_state(MAP)
    at(backend, "ann")
    pages.put(("a",), (1,))
    pages.put(("b",), (2,))
    snapshot = backend.commit()
    at(backend, "ann")
    pages.remove(("a",))
    pages.put(("c",), (3,))
    backend._database.handle.flush()
    backend._database.handle.compact_range(None, None)
    for _ in range(2):
        assert snapshot.cells("pages", 1) == Cells([1, 1], [("ann",)] * 2, [("a",), ("b",)], [(1,), (2,)])


def test_clearing_a_map_records_every_entry_as_deleted(backend):
    pages = backend.map_state(MAP)
    at(backend, "ann")
    pages.put(("a",), (1,))
    pages.put(("b",), (2,))
    backend.commit()
    at(backend, "ann")
    pages.clear()
    pages.put(("c",), (3,))
    key = ("ann",)
    assert changed(backend.commit()) == {
        "pages": {(1, key, ("a",)): ABSENT, (1, key, ("b",)): ABSENT, (1, key, ("c",)): (3,)}
    }


def test_keys_that_are_prefixes_of_others_keep_their_entries_apart(backend):
    pages = backend.map_state(MAP)
    for key in ("a", "ab", "abc", ""):
        at(backend, key)
        pages.put((key,), (len(key),))
    for key in ("a", "ab", "abc", ""):
        at(backend, key)
        assert list(pages.items()) == [((key,), (len(key),))]
    at(backend, "a")
    pages.clear()
    assert sorted(key for _, key in backend.keys("pages")) == [("",), ("ab",), ("abc",)]


def test_taking_a_commit_back_takes_the_open_version_with_it(backend):
    visits, times = backend.value_state(VALUE), backend.list_state(LIST)
    at(backend, "ann")
    visits.update((1,))
    times.extend([(1,), (2,)])
    backend.commit()
    at(backend, "ann")
    visits.update((2,))
    times.append((3,))
    backend.commit()
    at(backend, "ann")
    visits.clear()
    times.put([])
    backend.undo_commit()
    at(backend, "ann")
    assert visits.get() == (1,)
    assert list(times.get()) == [(1,), (2,)]
    assert not backend.rollback()


def test_a_rolled_back_version_leaves_no_trace_in_the_next_delta(backend):
    visits = backend.value_state(VALUE)
    at(backend, "ann")
    visits.update((1,))
    assert backend.rollback()
    at(backend, "bob")
    visits.update((2,))
    assert changed(backend.commit()) == {"visits": {(1, ("bob",), None): (2,)}}


def test_a_change_without_an_update_ends_with_the_version(backend):
    state = backend.value_state(StateDescriptor("numbers", StateKind.VALUE, NUMBERS))
    at(backend, "ann")
    state.update(([1],))
    backend.commit()
    at(backend, "ann")
    state.get()[0].append(2)
    assert state.get() == ([1, 2],)
    assert changed(backend.commit()) == {}
    at(backend, "ann")
    assert state.get() == ([1],)


def test_loading_is_part_of_no_version_and_survives_a_rollback(backend):
    backend.load(MAP, Cells([1, 1], [("ann",), ("ann",)], [("a",), ("b",)], [(1,), (2,)]))
    backend.load(MAP, Cells([1], [("ann",)], [("a",)], [ABSENT]))
    assert not backend.rollback()
    pages = backend.map_state(MAP)
    at(backend, "ann")
    assert list(pages.items()) == [(("b",), (2,))]
    assert changed(backend.commit()) == {}


def test_loading_into_an_open_version_is_refused(backend):
    at(backend, "ann")
    backend.value_state(VALUE).update((1,))
    with pytest.raises(OptionError, match="'visits' cannot be loaded while a version is open"):
        backend.load(VALUE, Cells([1], [("bob",)], None, [(1,)]))


def test_state_survives_on_disk_what_its_write_buffer_cannot_hold(backend):
    state = backend.value_state(StateDescriptor("text", StateKind.VALUE, TEXT))
    for number in range(2000):
        at(backend, number)
        state.update((f"{number}" * 50,))
    backend._database.handle.flush()
    assert backend.properties()["sst_bytes"] > 0
    at(backend, 1234)
    assert state.get() == ("1234" * 50,)


def test_a_released_snapshot_and_one_of_a_closed_backend_cannot_be_read(backend):
    backend.value_state(VALUE)
    released, left = backend.commit(), backend.commit()
    released.release()
    released.release()
    backend.close()
    for snapshot in (released, left):
        with pytest.raises(UnavailableError, match="was released, or its backend was closed"):
            list(snapshot.changes())


def test_a_folder_in_use_is_refused_and_its_owner_goes_on(backend, tmp_path):
    with pytest.raises(UnavailableError, match=r"state is in use by another state backend\. Give each"):
        RocksDbBackend(range(4), tmp_path / "state")
    at(backend, "ann")
    backend.value_state(VALUE).update((1,))


def test_what_an_earlier_owner_left_is_wiped_and_other_files_are_not(tmp_path):
    (tmp_path / "state" / "db").mkdir(parents=True)
    (tmp_path / "state" / "db" / "CURRENT").write_text("MANIFEST-of-nothing\n")
    (tmp_path / "state" / "notes.txt").write_text("mine")
    backend = RocksDbBackend(range(4), tmp_path / "state")
    at(backend, "ann")
    assert backend.value_state(VALUE).get() is None
    backend.close()
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["notes.txt"]


def test_closing_removes_the_folder_and_may_be_done_twice(backend, tmp_path):
    backend.close()
    backend.close()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_corruption_that_names_the_folder(backend, tmp_path):
    state = backend.value_state(VALUE)
    for number in range(500):
        at(backend, number)
        state.update((number,))
    backend.commit().release()
    backend._database.handle.flush()
    for path in (tmp_path / "state" / "db").glob("*.sst"):
        with path.open("r+b") as file:
            file.write(os.urandom(min(1000, path.stat().st_size)))
    at(backend, 0)
    with pytest.raises(CorruptionError, match=r"state is damaged: .* restore"):
        state.get()
    with pytest.raises(CorruptionError, match="is damaged"):
        backend.cells("visits", 1)


FILL_THE_DISK = textwrap.dedent(
    """
    import resource, sys
    from pathlib import Path
    import pyarrow as pa
    from millpond.errors import UnavailableError
    from millpond.state.spi import StateDescriptor, StateKind
    from millpond.state.rocksdb.backend import RocksDbBackend

    backend = RocksDbBackend(range(1), Path(sys.argv[1]), write_buffer_bytes=1 << 16)
    text = backend.value_state(StateDescriptor("text", StateKind.VALUE, pa.schema([("text", pa.string())])))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    backend.enter(0)
    try:
        for number in range(200_000):
            backend.context.key = (number,)
            text.update((str(number) * 100,))
    except UnavailableError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        backend.rollback()
    except UnavailableError:
        print("made anew")
    backend.close()
    print(Path(sys.argv[1]).exists())
    """
)


def test_a_file_that_may_not_grow_is_a_clear_error_and_the_folder_can_still_be_removed(tmp_path):
    """RocksDB gets over a full disk, and not over a limit on files, nor a quota: state is then made anew."""
    command = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path / "state")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    error, rolled_back, left = done.stdout.strip().splitlines()
    assert f"no space for keyed state in {tmp_path / 'state'}" in error
    assert "set state.backend.rocksdb.local-dir" in error
    assert (rolled_back, left) == ("made anew", "False")


def test_without_rocksdict_the_install_line_is_given(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'millpond\[rocksdb\]'"):
        RocksDbBackend(range(1), Path(tmp_path) / "state")


def test_a_state_restored_before_its_type_was_declared_cannot_be_declared_any_more(backend):
    raw = StateDescriptor.decode(_objects("msgspec int").encode())
    backend.load(raw, Cells([1], [("ann",)], None, [b"\x01"]))
    with pytest.raises(OptionError, match="declare it before the restore"):
        backend.value_state(_objects("msgspec int"))


def _objects(text):
    from millpond.state.types.object_codec import OBJECT_SCHEMA
    from millpond.state.types.serializer import Serializer

    return StateDescriptor("objects", StateKind.VALUE, OBJECT_SCHEMA, serializer=Serializer(text))
