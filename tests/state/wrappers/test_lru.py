"""The LRU cache's promises one by one: the seed's counters, snapshots, copies, limits and errors."""

from dataclasses import replace

import pyarrow as pa
import pytest

from millpond.errors import DataError, OptionError
from millpond.metrics.recorder import MemoryRecorder
from millpond.state.operator.states import States
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import ABSENT, Cells, HeapBackend, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.lru.backend import LruStateCache
from millpond.state.wrappers.lru.hit_ratio import GAUGE, REQUESTS

GROUPS = range(4)
COUNT = StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
LOG = StateDescriptor("log", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(list[int]))
PAGES = StateDescriptor(
    "pages", StateKind.MAP, OBJECT_SCHEMA, pa.schema([("page", pa.string())]), msgspec_serializer(int)
)


@pytest.fixture(params=["heap", "rocksdb"])
def inner(request, tmp_path):
    backend = HeapBackend(GROUPS) if request.param == "heap" else RocksDbBackend(GROUPS, tmp_path / "db")
    yield backend
    backend.close()


def set_current_key(cache, number):
    cache.enter(number % len(GROUPS))
    cache.context.key = (number,)


def count(cache, state, number):
    set_current_key(cache, number)
    state.update((state.get() or 0) + 1)


def change_since(before, after):
    return {name: getattr(after, name) - getattr(before, name) for name in ("hits", "misses", "gets", "key_switches")}


@pytest.mark.parametrize(("size", "hit_rate"), [(25, 0.0), (50, 0.5), (100, 1.0)])
def test_the_seeds_job_hits_as_the_seed_says(inner, size, hit_rate):
    """A tenth of FLIP-325's benchmark; the key switch that is the record's own is not in the counter."""
    cache = LruStateCache(inner, max_entries=size)
    state = cache.value_state(COUNT)
    keys = [(x % 50) + 50 * ((x // 100) % 2) for x in range(1_000)]
    for key in keys[:200]:
        count(cache, state, key)
    before = cache.stats()
    for key in keys[200:]:
        count(cache, state, key)
    after = cache.stats()
    missed = round(800 * (1 - hit_rate))
    assert change_since(before, after) == {
        "hits": 800 - missed,
        "misses": missed,
        "gets": missed,
        "key_switches": missed,
    }
    # Written ahead in batches, so a few may be early; never one a record more.
    assert missed - size <= after.puts - before.puts <= missed * 5 // 4
    assert after.puts == 0 if hit_rate == 1.0 else after.puts <= 1_000
    assert after.entries == size
    for key in set(keys):
        set_current_key(cache, key)
        assert state.get() == 10


def test_an_update_reads_nothing(inner):
    cache = LruStateCache(inner, max_entries=10)
    state = cache.value_state(COUNT)
    set_current_key(cache, 1)
    state.update(5)
    state.update(6)
    assert (cache.stats().gets, cache.stats().puts, cache.stats().misses) == (0, 0, 0)
    assert state.get() == 6
    assert (cache.stats().gets, cache.stats().hits) == (0, 1)


def test_an_absence_is_cached_and_counts_as_a_pair(inner):
    cache = LruStateCache(inner, max_entries=2)
    state = cache.value_state(COUNT)
    for _ in range(3):
        set_current_key(cache, 1)
        assert state.get() is None
    assert (cache.stats().gets, cache.stats().entries) == (1, 1)


def test_map_entries_are_pairs_and_the_limit_is_over_all_states(inner):
    cache = LruStateCache(inner, max_entries=3)
    pages, state = cache.map_state(PAGES), cache.value_state(COUNT)
    set_current_key(cache, 1)
    for number, page in enumerate("abc"):
        pages.put((page,), number)
    assert cache.stats().evictions == 0
    state.update(9)
    assert (cache.stats().evictions, cache.stats().entries) == (1, 3)
    assert dict(pages.items()) == {("a",): 0, ("b",): 1, ("c",): 2}


def test_the_least_recently_used_leaves_even_when_hotter_ones_are_written_with_it(inner):
    cache = LruStateCache(inner, max_entries=8)
    state = cache.value_state(COUNT)
    for number in range(8):
        count(cache, state, number)
    set_current_key(cache, 0)
    assert state.get() == 1
    count(cache, state, 8)
    assert (cache.stats().evictions, cache.stats().puts) == (1, 2)
    hits = cache.stats().hits
    for number in (0, 2, 3, 4, 5, 6, 7, 8):
        set_current_key(cache, number)
        assert state.get() == 1
    assert cache.stats().hits == hits + 8


def test_a_commit_neither_writes_nor_reads_nor_copies(inner):
    cache = LruStateCache(inner, max_entries=100)
    state = cache.value_state(LOG)
    for number in range(50):
        set_current_key(cache, number)
        state.update([number])
    before = cache.stats()
    snapshots = [cache.commit() for _ in range(3)]
    assert cache.stats() == before
    assert [sum(len(cells) for _, cells in snapshot.changes()) for snapshot in snapshots] == [50, 0, 0]


def test_neither_a_change_nor_an_eviction_reaches_a_checkpoint_that_is_being_written(inner):
    cache = LruStateCache(inner, max_entries=2)
    state = cache.value_state(LOG)
    for number in (0, 1):
        set_current_key(cache, number)
        state.update([number])
    snapshot = cache.commit()
    set_current_key(cache, 0)
    state.get().append(98)  # never becomes state
    set_current_key(cache, 1)
    grown = state.get()
    grown.append(99)
    state.update(grown)
    for number in (2, 3, 4):
        set_current_key(cache, number)
        state.update([number])
    assert _values(snapshot, "log") == {(0,): [0], (1,): [1]}
    assert _values(cache, "log") == {(0,): [0], (1,): [1, 99], (2,): [2], (3,): [3], (4,): [4]}


def test_what_leaves_unchanged_after_a_checkpoint_is_not_in_the_next_delta(inner):
    cache = LruStateCache(inner, max_entries=2)
    state = cache.value_state(COUNT)
    for number in (0, 1):
        count(cache, state, number)
    cache.commit()
    for number in (2, 3):
        count(cache, state, number)
    assert cache.stats().puts == 2
    assert _changed(cache.commit()) == {(2,), (3,)}


def test_a_deletion_of_what_the_backend_never_saw_is_in_the_delta(inner):
    cache = LruStateCache(inner, max_entries=1)
    state = cache.value_state(COUNT)
    count(cache, state, 0)
    cache.commit()
    set_current_key(cache, 0)
    state.clear()
    count(cache, state, 1)
    snapshot = cache.commit()
    changed = {
        key: value for _, cells in snapshot.changes() for key, value in zip(cells.keys, cells.values, strict=True)
    }
    assert changed == {(0,): ABSENT, (1,): 1}
    assert _values(snapshot, "count") == {(1,): 1}


def test_a_rollback_brings_back_what_was_committed_dirty_and_then_evicted(inner):
    cache = LruStateCache(inner, max_entries=2)
    state = cache.value_state(COUNT)
    for number in (0, 1):
        count(cache, state, number)
    cache.commit()
    for number in (1, 2, 3):
        count(cache, state, number)
    assert cache.rollback()
    assert not cache.rollback()
    assert _values(cache, "count") == {(0,): 1, (1,): 1}
    gets = cache.stats().gets
    for number in (0, 1):
        set_current_key(cache, number)
        assert state.get() == 1
    assert cache.stats().gets == gets


def test_a_mutable_value_is_copied_once_a_version_and_the_same_copy_given_again(inner):
    copies = []

    def counting_copy(value):
        copies.append(value)
        return list(value)

    cache = LruStateCache(inner, max_entries=5)
    counted = replace(LOG, serializer=replace(LOG.serializer, copy=counting_copy))
    state = cache.value_state(counted)
    set_current_key(cache, 0)
    state.update([1])
    assert copies == []
    for version in (1, 2, 3):
        cache.commit()
        set_current_key(cache, 0)
        assert state.get() is state.get()
        state.update(state.get())
        assert state.get() is state.get()
        assert len(copies) == version == cache.stats().copies


def test_a_cache_sized_in_bytes_holds_what_fits():
    cache = LruStateCache(HeapBackend(GROUPS), max_bytes=100, weigher=lambda _, value: 10 * len(value or ()))
    state = cache.value_state(LOG)
    for number in range(3):
        set_current_key(cache, number)
        state.update([0] * 4)
    assert (cache.stats().entries, cache.stats().bytes) == (2, 80)
    state.update([0] * 10)
    assert (cache.stats().entries, cache.stats().bytes) == (1, 100)
    state.update([0] * 11)
    assert (cache.stats().entries, cache.stats().bytes) == (0, 0)
    assert state.get() == [0] * 11
    assert cache.stats().bytes == 0
    assert {key: len(value) for key, value in _values(cache, "log").items()} == {(0,): 4, (1,): 4, (2,): 11}


def test_what_was_too_heavy_and_changed_without_an_update_does_not_come_back():
    cache = LruStateCache(HeapBackend(GROUPS), max_bytes=100, weigher=lambda _, value: 10 * len(value or ()))
    state = cache.value_state(LOG)
    set_current_key(cache, 0)
    state.update([0] * 11)
    cache.commit()
    set_current_key(cache, 0)
    state.get().clear()
    state.get()
    cache.commit()
    set_current_key(cache, 0)
    assert state.get() == [0] * 11


def test_a_load_replaces_what_is_cached(inner):
    cache = LruStateCache(inner, max_entries=5)
    state = cache.value_state(COUNT)
    set_current_key(cache, 0)
    assert state.get() is None
    cache.load(COUNT, Cells([0], [(0,)], None, [7]))
    set_current_key(cache, 0)
    assert state.get() == 7


def test_a_recorder_hears_of_the_reads_of_a_version_at_its_commit():
    recorder = MemoryRecorder()
    cache = LruStateCache(HeapBackend(GROUPS), max_entries=1, recorder=recorder)
    state = cache.value_state(COUNT)
    for number in (0, 0, 1):
        count(cache, state, number)
    cache.commit()
    assert recorder.total("millpond_state_cache_requests_total", result="hit") == 1
    assert recorder.total("millpond_state_cache_requests_total", result="miss") == 2


def test_a_recorder_hears_of_the_hit_ratio_every_second_and_not_only_at_commits():
    recorder, now = MemoryRecorder(), [0]
    cache = LruStateCache(HeapBackend(GROUPS), max_entries=1, recorder=recorder, clock=lambda: now[0])
    state = cache.value_state(COUNT)
    levels = []
    for _ in range(4):
        now[0] += 500
        for turn in range(1_024):
            count(cache, state, turn // 2)
        levels.append(recorder.level(GAUGE))
    assert levels == [None, pytest.approx(0.5, abs=1e-3), pytest.approx(0.5, abs=1e-3), 0.5]
    cache.commit()
    assert recorder.total(REQUESTS, result="hit") == 2_048


def test_cleaning_up_incrementally_neither_counts_nor_evicts(inner):
    ttl = Ttl(duration_ms=10, clean_up=("incremental",))
    cache = LruStateCache(inner, max_entries=2)
    state = States(cache).value("count", int, ttl=ttl)
    for number in range(40):
        set_current_key(cache, number)
        state.update(number)
    cache.context.now_ms = 5
    for number in (38, 39):
        set_current_key(cache, number)
        state.update(number)
    cache.context.now_ms = 10
    before = cache.stats()
    for _ in range(10):
        set_current_key(cache, 39)
        assert state.get() == 39
    after = cache.stats()
    assert {key for _, key in cache.keys("count")} == {(38,), (39,)}
    assert (after.hits, after.misses, after.evictions) == (before.hits + 10, before.misses, before.evictions)
    set_current_key(cache, 38)
    assert state.get() == 38
    assert cache.stats().hits == after.hits + 1


def test_going_through_a_map_copies_no_entry_that_is_not_cached(inner):
    copies = []

    def counting_copy(value):
        copies.append(value)
        return list(value)

    entries = replace(PAGES, serializer=replace(LOG.serializer, copy=counting_copy))
    cache = LruStateCache(inner, max_entries=1)
    state = cache.map_state(entries)
    set_current_key(cache, 0)
    for number, page in enumerate("abc"):
        state.put((page,), [number])
    cache.commit()
    set_current_key(cache, 0)
    for _ in range(3):
        assert dict(state.items()) == {("a",): [0], ("b",): [1], ("c",): [2]}
    # On the heap the backend's own handle makes the copy, once a version; RocksDB reads bytes.
    assert sorted(copies) == ([[0], [1], [2]] if isinstance(inner, HeapBackend) else [[2]])
    for value in dict(state.items()).values():
        value.append(99)
    assert state.get(("a",)) == [0]
    cache.rollback()
    set_current_key(cache, 0)
    assert dict(state.items()) == {("a",): [0], ("b",): [1], ("c",): [2]}


def test_a_change_that_was_never_read_finds_its_place_when_it_is_written(inner):
    cache = LruStateCache(inner, max_entries=4)
    state = cache.value_state(COUNT)
    for number in range(8):
        set_current_key(cache, number)
        state.update(number)
    set_current_key(cache, 9)
    state.clear()
    assert cache.stats().gets == 0
    assert _values(cache, "count") == {(number,): number for number in range(8)}
    assert _values(inner, "count").items() <= _values(cache, "count").items()
    assert len(_values(inner, "count")) >= 4


def test_a_write_that_fails_leaves_the_cache_as_it_was():
    backend = HeapBackend(GROUPS)
    cache = LruStateCache(backend, max_entries=2)
    state = cache.value_state(COUNT)
    for number in (0, 1):
        count(cache, state, number)
    tables = backend.value_state(COUNT).tables
    write, tables.write = tables.write, lambda _: (_ for _ in ()).throw(OSError("no space"))
    set_current_key(cache, 2)
    with pytest.raises(OSError, match="no space"):
        state.get()
    assert (cache.stats().entries, cache.stats().puts) == (2, 0)
    tables.write = write
    for number in (0, 1, 2):
        count(cache, state, number)
    assert _values(cache, "count") == {(0,): 2, (1,): 2, (2,): 1}


@pytest.mark.parametrize("limits", [{}, {"max_entries": 0}, {"max_bytes": 0}, {"max_entries": 5, "max_bytes": -1}])
def test_a_limit_that_is_none_is_refused(limits):
    with pytest.raises(OptionError, match="max_"):
        LruStateCache(HeapBackend(GROUPS), **limits)


def test_a_value_that_does_not_fit_is_refused_with_state_and_key():
    cache = LruStateCache(HeapBackend(GROUPS), max_entries=1)
    state = cache.value_state(COUNT)
    set_current_key(cache, 3)
    with pytest.raises(DataError, match=r"state 'count' of key \(3,\)"):
        state.update("many")
    assert state.get() is None


def test_a_use_without_a_current_key_is_refused():
    cache = LruStateCache(HeapBackend(GROUPS), max_entries=1)
    state = cache.value_state(COUNT)
    for forget in (lambda: None, cache.commit, cache.rollback):
        forget()
        with pytest.raises(OptionError, match="count"):
            state.get()
        with pytest.raises(OptionError, match="count"):
            state.update(1)
        count(cache, state, 0)


def _values(source, name):
    cells = [source.cells(name, group) for group in GROUPS]
    return {key: value for each in cells for key, value in zip(each.keys, each.values, strict=True)}


def _changed(snapshot):
    return {key for _, cells in snapshot.changes() for key in cells.keys}


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_what_was_committed_in_the_cache_alone_is_deleted_in_the_next_delta(inner, kind):
    """The backend never had it: its deletion, which an eviction gives to the backend, must be a change all the same."""
    cache = LruStateCache(inner, max_entries=2)
    state = getattr(cache, f"{kind}_state")(
        replace(PAGES if kind == "map" else COUNT, name=kind, kind=StateKind[kind.upper()])
    )
    put = {"value": lambda: state.update(7), "list": lambda: state.put([7]), "map": lambda: state.put(("a",), 7)}[kind]
    set_current_key(cache, 1)
    put()
    assert dict(cache.commit().changes())[kind].keys == [(1,)]
    for number in (1, 2, 3):
        set_current_key(cache, number)
        state.remove(("a",)) if kind == "map" else state.clear()
        state.exists()
    cells = dict(cache.commit().changes())[kind]
    assert dict(zip(cells.keys, cells.values, strict=True))[(1,)] is ABSENT
