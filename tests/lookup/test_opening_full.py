"""Opening, closing and opening anew a fully cached table, also from several threads and after failures."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from millpond.errors import OptionError, UnavailableError
from millpond.lookup import (
    FullCachingLookup,
    FullCachingLookupProvider,
    LookupStats,
    LookupTable,
    PeriodicCacheReloadTrigger,
    TableScan,
)
from millpond.lookup.caches.full_home import InProcess

from .full_tables import Manual, Source, gates, open_full
from .timer import Timer

PATIENCE_S = 20


def test_the_first_load_has_nothing_to_fall_back_on_and_raises():
    answers = [gates(1), UnavailableError("down")]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    with pytest.raises(UnavailableError, match="down"):
        open_full(read)


def test_a_table_that_is_not_open_says_so():
    lookup = LookupTable("t", TableScan(gates(1), ["code"]), {"lookup.cache": "FULL"}).lookup_function()
    with pytest.raises(OptionError, match="not loaded yet"):
        lookup.lookup(("JFK",))


def test_a_reload_that_ends_after_the_close_changes_nothing():
    waiting = []
    lookup = open_full(Source(gates(1), gates(2), gates(3)), Manual(), run=waiting.append)
    lookup.trigger_reload()
    lookup.close()
    waiting.pop()()
    assert lookup.lookup(("JFK",)) == [(1,)]
    lookup.open()
    assert lookup.lookup(("JFK",)) == [(3,)]


def test_flinks_way_fails_every_lookup_after_a_failed_reload_until_it_is_opened_anew():
    source, trigger = Source(gates(1), OSError("source down"), gates(2), gates(3)), Manual()
    lookup = open_full(source, trigger, on_reload_failure="fail")
    with pytest.warns(UserWarning, match="fails from now on"), pytest.raises(OSError, match="source down"):
        lookup.reload()
    assert trigger.closed == 1
    assert isinstance(trigger.context.trigger_reload().exception(PATIENCE_S), UnavailableError)
    with pytest.raises(UnavailableError, match=r"reload failed.*source down"):
        lookup.reload()
    assert len(source.answers) == 2, "nothing is scanned any more"
    with pytest.raises(UnavailableError, match=r"reload failed.*source down"):
        lookup.lookup(("JFK",))
    lookup.close()
    lookup.open()
    assert lookup.lookup(("JFK",)) == [(2,)]
    with pytest.raises(OptionError, match="keep or fail, got 'stop'"):
        open_full(Source(gates(1)), on_reload_failure="stop")


def test_threads_that_open_one_table_at_the_same_time_load_it_once():
    reads, together = [], threading.Barrier(4, timeout=PATIENCE_S)

    def read():
        reads.append(1)
        return gates(1)

    lookup = FullCachingLookup(TableScan(read, ["code"]), None)
    declared = len(reads)

    def open_it(_):
        together.wait()
        lookup.open()
        return lookup.lookup(("JFK",))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(open_it, range(4))) == [[(1,)]] * 4
    assert len(reads) - declared == 1


def test_an_opening_anew_that_fails_is_tried_again_by_the_next():
    trigger = Manual()
    lookup = open_full(Source(gates(1), UnavailableError("down"), gates(2)), trigger)
    lookup.close()
    with pytest.raises(UnavailableError, match="down"):
        lookup.open()
    trigger.context = None
    lookup.open()
    assert trigger.context is lookup
    assert lookup.lookup(("JFK",)) == [(2,)]


def test_a_table_that_is_closed_while_it_loads_has_no_open_trigger_afterwards():
    trigger = PeriodicCacheReloadTrigger(10, later=(timer := Timer()).later)
    entered, leave = threading.Event(), threading.Event()

    class Slow(InProcess):
        def swap(self, held):
            entered.set()
            assert leave.wait(PATIENCE_S)

    lookup = FullCachingLookup(TableScan(gates(1), ["code"]), trigger, home=Slow(), run=lambda action: action())
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(lookup.open)
        assert entered.wait(PATIENCE_S)
        lookup.close()
        leave.set()
        opening.result(PATIENCE_S)
    assert timer.pending == []


def test_each_opening_of_a_table_reloads_by_a_trigger_of_its_own():
    timer = Timer()

    def later(delay_ms, action):
        return timer.later(delay_ms, action)

    trigger = PeriodicCacheReloadTrigger(10, later=later)
    scan = TableScan(Source(*[gates(number) for number in range(9)]), ["code"])
    table = LookupTable("gates", FullCachingLookupProvider.of(scan, trigger))
    with table.open() as first, table.open() as second:
        assert len(timer.pending) == 2
        first.close()
        assert len(timer.pending) == 1
        second.close()
        assert timer.pending == []
        with table.open():
            assert len(timer.pending) == 1
    table.close()


def test_what_cannot_be_closed_keeps_nothing_else_open():
    scan = TableScan(gates(1), ["code"])
    trigger = Manual()
    table = LookupTable("gates", FullCachingLookupProvider.of(scan, trigger))
    elsewhere = []

    def broken():
        elsewhere.append("broken")
        raise UnavailableError("its host is gone")

    table.open()
    table.watch(LookupStats, broken)
    table.watch(LookupStats, lambda: elsewhere.append("closed"))
    with pytest.raises(UnavailableError, match="its host is gone"):
        table.close()
    assert (trigger.closed, elsewhere) == (1, ["broken", "closed"])


def test_a_scan_of_ones_own_is_closed_with_its_table_if_it_was_narrowed_too():
    class Own:
        key_schema = pa.schema([("code", pa.string())])
        row_schema = pa.schema([("gate", pa.int64()), ("hall", pa.int64())])

        def __init__(self):
            self.closed = 0

        def scan(self):
            return gates(7).append_column("hall", pa.array([1]))

        def close(self):
            self.closed += 1

    scan = Own()
    with LookupTable("gates", scan, {"lookup.cache": "FULL"}).select(["hall"]) as table:
        assert table.open().lookup(("JFK",)) == [(1,)]
    assert scan.closed == 1


@pytest.mark.filterwarnings("ignore:lookup table")
def test_a_table_that_failed_is_opened_anew_without_a_close():
    trigger = Manual()
    down = UnavailableError("down")
    lookup = open_full(Source(gates(1), down, down, gates(2)), trigger, on_reload_failure="fail")
    for again in (lookup.reload, lookup.open):
        with pytest.raises(UnavailableError, match="down"):
            again()
        with pytest.raises(UnavailableError, match="open the table anew"):
            lookup.lookup(("JFK",))
    trigger.context = None
    lookup.open()
    assert (lookup.lookup(("JFK",)), trigger.context) == ([(2,)], lookup)
