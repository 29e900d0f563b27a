"""Full caching: one whole table at a time, and the last good one when a reload fails."""

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.lookup import (
    CacheMetricGroup,
    FileScan,
    FullCachingLookup,
    KeyedTable,
    LookupTable,
    PeriodicCacheReloadTrigger,
    Retries,
    TableScan,
)

PATIENCE_S = 20


class Timer:
    """Fires nothing by itself; the test moves the clock."""

    def __init__(self):
        self.now_ms = 0
        self.pending = []

    def later(self, delay_ms, action):
        entry = (self.now_ms + delay_ms, action)
        self.pending.append(entry)
        return lambda: entry in self.pending and self.pending.remove(entry)

    def move_to(self, now_ms):
        while due := sorted((entry for entry in self.pending if entry[0] <= now_ms), key=lambda entry: entry[0]):
            self.pending.remove(due[0])
            self.now_ms = max(self.now_ms, due[0][0])
            due[0][1]()
        self.now_ms = now_ms


def open_full(read, trigger=None, clock=lambda: 0):
    scan = TableScan(read, ["code"])
    retries = Retries(0)
    lookup = FullCachingLookup(
        scan, trigger, CacheMetricGroup("t"), retries, clock, wall_clock=clock, run=lambda action: action()
    )
    lookup.open()
    return lookup


def gates(*numbers):
    return pa.table({"code": ["JFK"] * len(numbers), "gate": pa.array(numbers, pa.int64())})


KEY = st.one_of(st.none(), st.tuples(st.sampled_from(["JFK", "EWR", "LGA", ""]), st.integers(0, 3)))


@settings(deadline=None)
@given(rows=st.lists(st.tuples(KEY, st.integers()), max_size=20), asked=st.lists(KEY.filter(bool), max_size=8))
def test_every_row_is_found_by_its_key_as_a_walk_over_all_rows_finds_it(rows, asked):
    table = pa.table(
        {
            "code": pa.array([key and key[0] for key, _ in rows], pa.string()),
            "hour": pa.array([key and key[1] for key, _ in rows], pa.int64()),
            "value": pa.array([value for _, value in rows], pa.decimal128(38)),
        }
    )
    found = KeyedTable.of(table, ["code", "hour"]).find(asked)
    for key in asked:
        expected = [(*key, value) for row_key, value in rows if row_key == key]
        assert sorted(found[key]) == sorted(expected)


def test_a_table_survives_its_file(tmp_path):
    table = KeyedTable.of(pa.table({"code": ["JFK", None, "EWR"], "gate": [1, 2, 3]}), ["code"])
    table.write(tmp_path / "t.arrow")
    again = KeyedTable.read(tmp_path / "t.arrow", ["code"])
    assert again.find([("JFK",), ("EWR",), ("LGA",)]) == {("JFK",): [("JFK", 1)], ("EWR",): [("EWR", 3)], ("LGA",): []}
    assert [path.name for path in tmp_path.iterdir()] == ["t.arrow"]


def test_a_torn_file_is_refused_by_name(tmp_path):
    path = tmp_path / "t.arrow"
    KeyedTable.of(gates(1, 2), ["code"]).write(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptionError, match=r"t\.arrow"):
        KeyedTable.read(path, ["code"])


def test_a_miss_never_asks_the_source_and_counts_a_hit():
    reads = []

    def read():
        reads.append(1)
        return gates(1)

    lookup = open_full(read)
    before = len(reads)
    assert lookup.lookup_many([("JFK",), ("LHR",)]) == {("JFK",): [(1,)], ("LHR",): []}
    assert len(reads) == before
    assert (lookup.stats().hit_count, lookup.stats().miss_count) == (2, 0)
    assert lookup.stats().num_cached_record == 1


def test_a_reload_replaces_the_whole_table():
    tables = [gates(1), gates(1), gates(2, 3)]
    timer = Timer()
    trigger = PeriodicCacheReloadTrigger(100, later=timer.later)
    lookup = open_full(lambda: tables.pop(0), trigger, lambda: timer.now_ms)
    held = lookup.current()
    timer.move_to(100)
    assert lookup.lookup(("JFK",)) == [(2,), (3,)]
    assert held.find([("JFK",)]) == {("JFK",): [("JFK", 1)]}
    assert lookup.stats().load_count == 2


def test_a_failed_reload_keeps_the_last_good_table_counts_warns_and_tries_again():
    answers = [gates(1), gates(1), OSError("source down"), gates(2)]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    timer = Timer()
    lookup = open_full(read, PeriodicCacheReloadTrigger(100, later=timer.later), lambda: timer.now_ms)
    with pytest.warns(UserWarning, match=r"last good.*source down"):
        timer.move_to(100)
    assert lookup.lookup(("JFK",)) == [(1,)]
    assert lookup.stats().num_load_failure == 1
    timer.move_to(200)
    assert lookup.lookup(("JFK",)) == [(2,)]


def test_the_first_load_has_nothing_to_fall_back_on_and_raises():
    answers = [gates(1), UnavailableError("down")]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    with pytest.raises(UnavailableError, match="down"):
        open_full(read)


def test_a_reload_that_lost_a_declared_column_is_a_failed_reload():
    tables = [gates(1), gates(1), pa.table({"code": ["JFK"]})]
    lookup = open_full(lambda: tables.pop(0))
    with pytest.warns(UserWarning, match="gate"):
        lookup.trigger_reload()
    assert lookup.lookup(("JFK",)) == [(1,)]


def test_fixed_delay_counts_from_the_end_of_a_reload_and_fixed_rate_from_its_start():
    starts = {}
    for mode in ("FIXED_DELAY", "FIXED_RATE"):
        timer = Timer()

        class SlowTable:
            def current_processing_time_ms(self, timer=timer):
                return timer.now_ms

            def trigger_reload(self, timer=timer, mode=mode):
                starts.setdefault(mode, []).append(timer.now_ms)
                timer.now_ms += 30
                done = Future()
                done.set_result(None)
                return done

        trigger = PeriodicCacheReloadTrigger(100, mode, timer.later)
        trigger.open(SlowTable())
        for now_ms in range(0, 400, 10):
            if now_ms >= timer.now_ms:
                timer.move_to(now_ms)
        trigger.close()
        trigger.close()
        assert timer.pending == []
    assert starts == {"FIXED_DELAY": [100, 230, 360], "FIXED_RATE": [100, 200, 300]}


def test_a_table_that_is_not_open_says_so():
    lookup = LookupTable("t", TableScan(gates(1), ["code"]), {"lookup.cache": "FULL"}).lookup_function()
    with pytest.raises(OptionError, match="not loaded yet"):
        lookup.lookup(("JFK",))


def test_parquet_is_read_anew_at_every_load(tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "gates.parquet"
    pq.write_table(gates(1), path)
    table = LookupTable("gates", FileScan(path, ["code"]), {"lookup.cache": "FULL"})
    with table.open() as lookup:
        assert lookup.lookup(("JFK",)) == [(1,)]
        pq.write_table(gates(5, 6), path)
        lookup.reload()
        assert lookup.lookup(("JFK",)) == [(5,), (6,)]
    assert table.stats().named()["loadCount"] == 2


def test_a_missing_parquet_file_and_a_missing_column_are_named(tmp_path):
    with pytest.raises(UnavailableError, match=r"nowhere\.parquet"):
        FileScan(tmp_path / "nowhere.parquet", ["code"])
    with pytest.raises(DataError, match=r"'iata'.*code, gate"):
        TableScan(gates(1), ["iata"])


def test_a_key_without_exact_equality_is_refused():
    with pytest.raises(OptionError, match=r"'x'.*double"):
        TableScan(pa.table({"x": [1.5], "y": [1]}), ["x"])


def test_the_real_timer_reloads_until_it_is_closed():
    reads = threading.Semaphore(0)

    def read():
        reads.release()
        return gates(1)

    lookup = open_full(read, PeriodicCacheReloadTrigger(1))
    for _ in range(5):
        assert reads.acquire(timeout=PATIENCE_S)
    lookup.close()
    lookup.close()
    assert lookup.lookup(("JFK",)) == [(1,)]


def test_readers_see_one_table_or_the_other_while_it_reloads():
    versions = itertools.count()

    def read():
        version = next(versions)
        return gates(*[version] * (version % 5 + 1))

    lookup = open_full(read)

    def watch(_):
        for _ in range(300):
            rows = lookup.lookup(("JFK",))
            assert len(set(rows)) == 1
            assert len(rows) == rows[0][0] % 5 + 1
        return True

    with ThreadPoolExecutor(3) as pool:
        watchers = [pool.submit(watch, number) for number in range(2)]
        while not all(watcher.done() for watcher in watchers):
            lookup.reload()
        assert all(watcher.result() for watcher in watchers)


def test_a_table_reloads_on_demand_and_keeps_its_counts_when_closed():
    tables = [gates(1), gates(1), gates(2)]
    table = LookupTable("gates", TableScan(lambda: tables.pop(0), ["code"]), {"lookup.cache": "FULL"})
    with table:
        lookup = table.open()
        table.reload()
        assert lookup.lookup(("JFK",)) == [(2,)]
        assert table.stats().num_cached_record == 1
    table.close()
    assert (table.stats().load_count, table.stats().hit_count) == (2, 1)
    assert table.stats().num_cached_record is None


def test_the_interval_of_a_reload_is_positive():
    with pytest.raises(OptionError, match="at least 1 ms, got 0"):
        PeriodicCacheReloadTrigger(0)
