"""Full caching: one whole table at a time, and the last good one when a reload fails."""

import itertools
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import NoneType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import (
    FileScan,
    FullCachingLookup,
    FullCachingLookupProvider,
    LookupTable,
    PeriodicCacheReloadTrigger,
    PythonLookup,
    Retries,
    TableScan,
    TimedCacheReloadTrigger,
)
from millpond.lookup.caches.full import in_a_thread_that_gives_way
from millpond.lookup.caches.full_home import InProcess
from millpond.lookup.caches.mapped_table import MappedTable
from millpond.lookup.functions.keys import PlainKeys

from .full_tables import Manual, Source, gates, open_full
from .timer import Timer

PATIENCE_S = 20

KEY = st.one_of(st.none(), st.tuples(st.sampled_from(["JFK", "EWR", "LGA", ""]), st.integers(0, 3)))


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(KEY, st.integers(-(10**37), 10**37)), max_size=20),
    asked=st.lists(KEY.filter(bool), max_size=8),
)
def test_every_row_is_found_by_its_key_as_a_walk_over_all_rows_finds_it(rows, asked):
    table = pa.table(
        {
            "code": pa.array([key and key[0] for key, _ in rows], pa.string()),
            "hour": pa.array([key and key[1] for key, _ in rows], pa.int64()),
            "value": pa.array([value for _, value in rows], pa.decimal128(38)),
        }
    )
    found = InProcess().hold(table, ["code", "hour"]).find(asked)
    for key in asked:
        expected = [(*key, value) for row_key, value in rows if row_key == key]
        assert sorted(found[key]) == sorted(expected)


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


def test_a_reload_that_lost_a_declared_column_is_a_failed_reload():
    tables = [gates(1), gates(1), pa.table({"code": ["JFK"]})]
    lookup = open_full(lambda: tables.pop(0))
    with pytest.warns(UserWarning, match="gate"):
        lookup.trigger_reload()
    assert lookup.lookup(("JFK",)) == [(1,)]


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


def test_a_trigger_of_ones_own_sees_times_and_gets_a_future_of_its_reload():
    now_ms, trigger = 1_000, Manual()
    lookup = open_full(Source(gates(1), gates(2), OSError("down")), trigger, lambda: now_ms)
    assert trigger.context.current_processing_time_ms() == 1_000
    assert trigger.context.current_watermark_ms() is None
    lookup.advance_watermark(500)
    lookup.advance_watermark(400)
    assert trigger.context.current_watermark_ms() == 500
    assert trigger.context.trigger_reload().result(PATIENCE_S) is None
    assert lookup.lookup(("JFK",)) == [(2,)]
    with pytest.warns(UserWarning, match="last good"):
        failed = trigger.context.trigger_reload()
    assert isinstance(failed.exception(PATIENCE_S), UnavailableError | OSError)
    assert lookup.lookup(("JFK",)) == [(2,)]
    lookup.close()
    assert trigger.closed == 1


def test_a_table_tells_its_trigger_the_watermark_of_the_query():
    trigger = Manual()
    provider = FullCachingLookupProvider.of(TableScan(gates(1), ["code"]), trigger)
    with LookupTable("gates", provider) as table:
        table.open()
        table.advance_watermark(77)
        assert trigger.context.current_watermark_ms() == 77


def test_reloads_that_are_asked_for_while_one_has_not_begun_are_one():
    waiting = []
    lookup = open_full(Source(gates(1), gates(2), gates(3)), Manual(), run=waiting.append)
    first, second = lookup.trigger_reload(), lookup.trigger_reload()
    assert first is second
    assert len(waiting) == 1
    waiting.pop()()
    assert first.done()
    assert lookup.lookup(("JFK",)) == [(2,)]
    third = lookup.trigger_reload()
    assert third is not first
    waiting.pop()()
    assert lookup.lookup(("JFK",)) == [(3,)]


def test_a_trigger_does_not_wait_for_its_reload():
    reading, read_on = threading.Event(), threading.Event()
    tables = [gates(1), gates(1)]

    def read():
        if tables:
            return tables.pop()
        reading.set()
        assert read_on.wait(PATIENCE_S)
        return gates(2)

    lookup = FullCachingLookup(TableScan(read, ["code"]), Manual())
    lookup.open()
    reload = lookup.trigger_reload()
    assert reading.wait(PATIENCE_S)
    assert lookup.lookup(("JFK",)) == [(1,)]
    assert not reload.done()
    read_on.set()
    reload.result(PATIENCE_S)
    assert lookup.lookup(("JFK",)) == [(2,)]


def test_a_table_that_has_lost_all_its_rows_is_refused_unless_that_is_allowed():
    for allowed, expected in ((False, [(1,)]), (True, [])):
        lookup = open_full(Source(gates(1), gates()), allow_empty_reload=allowed)
        if allowed:
            lookup.reload()
        else:
            with pytest.warns(UserWarning, match=r"no rows where there were 1 keys.*allow_empty_reload"):
                lookup.reload()
        assert lookup.lookup(("JFK",)) == expected


def test_a_table_may_be_empty_from_the_start_and_fill_later():
    lookup = open_full(Source(gates(), gates(1)))
    assert lookup.lookup(("JFK",)) == []
    lookup.reload()
    assert lookup.lookup(("JFK",)) == [(1,)]


def test_a_swap_that_fails_is_a_failed_reload():
    class Full(InProcess):
        def swap(self, held):
            if held.table.num_rows > 1:
                raise OSError("disk full")

    lookup = open_full(Source(gates(1), gates(2, 3)), home=Full())
    with pytest.warns(UserWarning, match="disk full"):
        lookup.reload()
    assert lookup.lookup(("JFK",)) == [(1,)]
    assert lookup.stats().num_load_failure == 1


def test_a_scan_that_passes_by_itself_is_tried_again():
    class Flaky:
        key_schema, row_schema = pa.schema([("code", pa.string())]), pa.schema([("gate", pa.int64())])
        failures = 2

        def scan(self):
            if self.failures:
                self.failures -= 1
                raise ConnectionError("reset")
            return gates(1)

    waits = []
    lookup = FullCachingLookup(Flaky(), None, retries=Retries(3, sleep=waits.append))
    lookup.open()
    assert lookup.lookup(("JFK",)) == [(1,)]
    assert len(waits) == 2
    assert (lookup.stats().load_count, lookup.stats().num_load_failure) == (1, 0)


def test_a_scan_in_batches_that_breaks_off_is_begun_again():
    class InBatches:
        key_schema, row_schema = pa.schema([("code", pa.string())]), pa.schema([("gate", pa.int64())])
        failures = 1

        def scan(self):
            raise AssertionError("the whole table at once was asked for")

        def scan_batches(self):
            return pa.RecordBatchReader.from_batches(gates(1).schema, self._batches())

        def _batches(self):
            yield from gates(1).to_batches()
            if self.failures:
                self.failures -= 1
                raise ConnectionError("reset")
            yield from gates(2).to_batches()

    waits = []
    lookup = FullCachingLookup(InBatches(), None, retries=Retries(1, sleep=waits.append))
    lookup.open()
    assert lookup.lookup(("JFK",)) == [(1,), (2,)]
    assert len(waits) == 1


def test_a_scan_of_ones_own_without_a_declared_column_is_named():
    class Wrong:
        key_schema, row_schema = pa.schema([("code", pa.string())]), pa.schema([("terminal", pa.string())])

        def scan(self):
            return gates(1)

    with pytest.raises(DataError, match="no column terminal, only code, gate"):
        LookupTable("gates", Wrong(), {"lookup.cache": "FULL"}).open()


def test_the_time_a_load_took_is_told_in_milliseconds():
    times = iter([100, 142])
    lookup = open_full(Source(gates(1)), clock=lambda: next(times))
    assert lookup.stats().latest_load_time_ms == 42


def test_the_options_make_the_triggers():
    scan = TableScan(gates(1), ["code"])
    for options, kind in (
        ({}, NoneType),
        ({"lookup.full-cache.periodic-reload.interval": "1 h"}, PeriodicCacheReloadTrigger),
        (
            {"lookup.full-cache.reload-strategy": "TIMED", "lookup.full-cache.timed-reload.iso-time": "02:30"},
            TimedCacheReloadTrigger,
        ),
    ):
        lookup = LookupTable("gates", scan, {"lookup.cache": "FULL", **options}).lookup_function()
        assert type(lookup._trigger) is kind


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_a_reload_for_other_processes_gives_way_to_them_and_never_asks_for_more_than_it_has():
    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    found, own, ended = [], priority(), threading.Event()

    def note():
        found.append(priority())
        ended.set()

    in_a_thread_that_gives_way(note)
    assert ended.wait(10)
    assert found[0] >= max(own, 10)
    assert priority() == own


def test_the_bytes_of_a_table_are_those_of_its_file_index_included_and_no_file_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = pa.table({"code": [f"N{number}" for number in range(20_000)], "gate": range(20_000)})
    lookup = FullCachingLookup(TableScan(table, ["code"]), None)
    lookup.open()
    assert table.nbytes < lookup.stats().num_cached_bytes < 2 * table.nbytes
    assert lookup.stats().num_cached_bytes == lookup.current().file_bytes
    assert lookup.lookup(("N7",)) == [(7,)]
    assert list(tmp_path.iterdir()) == []


def test_a_reload_that_no_thread_can_be_started_for_fails_and_the_next_one_is_made():
    runs = [RuntimeError("can't start new thread"), None]

    def run(action):
        if (error := runs.pop(0)) is not None:
            raise error
        action()

    lookup = open_full(Source(gates(1), gates(2)), run=run)
    with pytest.raises(UnavailableError, match="could not begin: can't start new thread"):
        lookup.trigger_reload().result(PATIENCE_S)
    assert lookup.stats().num_load_failure == 1
    lookup.trigger_reload().result(PATIENCE_S)
    assert lookup.lookup(("JFK",)) == [(2,)]


@pytest.mark.filterwarnings("error:lookup table")
def test_who_waits_for_a_reload_gets_its_warning_if_warnings_are_errors():
    asked = []
    lookup = open_full(Source(gates(1), UnavailableError("down")), run=asked.append)
    ended = lookup.trigger_reload()
    with pytest.raises(UserWarning, match="goes on with the last good one"):
        asked.pop()()
    with pytest.raises(UserWarning, match="goes on with the last good one"):
        ended.result(0)


@pytest.mark.parametrize(
    ("key_type", "there", "absent"),
    [
        (pa.int64(), [5, -1], [1 << 70, 1 << 63]),
        (pa.int64(), [5, Decimal("7.0")], [Decimal("1E+30")]),
        (pa.int8(), [5, Decimal("5.0")], [500]),
        (pa.uint64(), [(1 << 64) - 1, 5, Decimal((1 << 63) + 1)], [-1, 1 << 64]),
        (pa.decimal128(9, 2), [Decimal("1.5"), Decimal("-0.00"), 7], [10**60, Decimal("1E+100"), -(10**7)]),
        (pa.decimal128(2, 2), [0, Decimal("0.5")], [1]),
        (pa.binary(2), [b"ab"], [b"abc", b""]),
    ],
)
def test_keys_that_the_column_cannot_hold_have_no_rows_and_the_others_have_theirs(key_type, there, absent):
    keys = pa.array([PlainKeys(pa.schema([("k", key_type)]))((key,))[0] for key in there], key_type)
    table = pa.table({"k": keys, "place": range(len(there))})
    with FullCachingLookup(TableScan(table, ["k"]), None) as lookup:
        found = lookup.lookup_many([(key,) for key in [*there, *absent]])
    for place, key in enumerate(there):
        assert (place,) in found[(key,)]
    assert [found[(key,)] for key in absent] == [[]] * len(absent)


@pytest.mark.parametrize("numbers", [pa.array([-1, 5]), pa.array([(1 << 64) - 1, 5], pa.uint64())])
@pytest.mark.parametrize("key_type", [pa.int64(), pa.uint64()])
def test_the_largest_unsigned_numbers_are_not_taken_for_negative_ones(key_type, numbers, tmp_path):
    own = -1 if key_type == pa.int64() else (1 << 64) - 1
    table = MappedTable.of(pa.table({"k": pa.array([own], key_type)}), ["k"], tmp_path / "1.table")
    assert table.search([numbers]).counts.tolist() == [int(numbers[0].as_py() == own), 0]


@pytest.mark.parametrize("mode", ["FULL", "NONE"])
@pytest.mark.parametrize(("word", "expected"), [("in", []), ("not in", [(1,)])])
def test_an_empty_list_of_values_means_the_same_wherever_it_is_checked(mode, word, expected):
    table = pa.table({"code": ["JFK", "JFK"], "gate": [1, 2], "hall": pa.array(["A", None])})
    rows = PythonLookup(
        lambda _: [(1, "A"), (2, None)],
        pa.schema([("code", pa.string())]),
        pa.schema([("gate", pa.int64()), ("hall", pa.string())]),
    )
    source = TableScan(table, ["code"]) if mode == "FULL" else rows
    with LookupTable("gates", source, {"lookup.cache": mode}).select(["gate"], [("hall", word, [])]) as gates:
        assert gates.open().lookup(("JFK",)) == expected
