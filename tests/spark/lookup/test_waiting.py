"""Events whose row is missing: each leaves once, with its row or after its last retry, whatever happens between."""

from typing import ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.lookup import (
    DefaultLookupCache,
    LookupFunctionProvider,
    LookupStats,
    LookupTable,
    MappedTable,
    PartialCachingLookupProvider,
    PythonLookup,
    ThreadedLookup,
)
from millpond.spark import ProcessorHarness
from millpond.spark.environment.versions import to_arrow_type
from millpond.spark.forms.dead_letters import letter_schema, with_dead_letters
from millpond.spark.lookup import rows as lookup_rows
from millpond.spark.lookup import waiting
from millpond.spark.lookup.counts import Counted
from millpond.spark.lookup.files import Published
from millpond.spark.lookup.rows import RowsWanted
from millpond.spark.lookup.waiting import LookUpAgain, MissingRetries
from millpond.spark.lookup.worker import JoinPlan
from millpond.spark.testing.ddl import parse_ddl

DELAY_MS, ATTEMPTS = 100, 3
PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100}
KEYS, ROWS = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
EVENTS = pa.schema([("id", pa.int64()), ("number", pa.int64())])


class Squares:
    """A table that fills up, and what was asked of it."""

    there: ClassVar[set[int]] = set()
    poison: ClassVar[set[int]] = set()
    calls: ClassVar[list[int]] = []

    @classmethod
    def begin(cls, there=()):
        cls.there, cls.poison, cls.calls = set(there), set(), []

    @classmethod
    def of(cls, number):
        cls.calls.append(number)
        if number in cls.poison:
            raise ValueError(f"{number} is poison")
        return [(number * number,)] if number in cls.there else []


class Told:
    """What the operator counted."""

    total = LookupStats()

    def add(self, counted: Counted) -> None:
        type(self).total += counted.stats


@pytest.fixture(autouse=True)
def _no_table_stays_open(monkeypatch):
    """Close what a state host would keep open for the next batch."""
    opened, open_table = [], lookup_rows._open

    def opening(table, version):
        opened.append(open_table(table, version))
        return opened[-1]

    monkeypatch.setattr(lookup_rows, "_open", opening)
    yield
    for each in opened:
        each.lookup.close()


def source():
    return PythonLookup(Squares.of, KEYS, ROWS)


TABLES = {
    "in columns": lambda: LookupTable("squares", source(), PARTIAL),
    "in rows": lambda: LookupTable(
        "squares", PartialCachingLookupProvider.of(source(), DefaultLookupCache(max_rows=100))
    ),
    "asynchronous": lambda: LookupTable("squares", ThreadedLookup(source(), threads=2), PARTIAL),
    "without a cache": lambda: LookupTable("squares", LookupFunctionProvider.of(source())),
}


def harness_of(table, *, inner=False, attempts=ATTEMPTS, events=EVENTS, letters=None):
    Told.total = LookupStats()
    wanted = RowsWanted(uuid4().hex, "squares", ("square",), (pa.field("square", pa.int64()),), letters is not None)
    letter = letters and to_arrow_type(letters["dead_letter"].dataType)
    plan = JoinPlan(source=table, key_places=(1,), kept=2, inner=inner, wanted=wanted, letter=letter)
    return ProcessorHarness(
        LookUpAgain(plan, MissingRetries(DELAY_MS, attempts), events, Told()),
        rows="id long, number long, home long",
        key="home",
        output=letters or "id long, number long, square long",
        time_mode="ProcessingTime",
        form="arrow",
    )


def rows(*numbers, first=0):
    """An event of each number, its id counted up, under one of three homes."""
    return [(first + at, number, (first + at) % 3) for at, number in enumerate(numbers)]


def left(output):
    return sorted((tuple(row) for row in output), key=repr)


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_that_comes_late_is_found_by_a_retry_whatever_absence_is_cached(kind):
    Squares.begin(there=[2])
    with harness_of(TABLES[kind]()) as harness:
        assert left(harness.process(rows(2, 3, None))) == [(0, 2, 4), (2, None, None)]
        assert harness.advance(processing_ms=DELAY_MS - 1) == []
        assert Squares.calls == [2, 3]
        assert harness.advance(processing_ms=DELAY_MS) == []
        assert Squares.calls == [2, 3, 3], "the source was asked again"
        Squares.there.add(3)
        assert harness.advance(processing_ms=2 * DELAY_MS - 1) == []
        assert left(harness.advance(processing_ms=2 * DELAY_MS)) == [(1, 3, 9)]
        assert harness.advance(processing_ms=99 * DELAY_MS) == []
        assert harness.state("waiting") == {}
    counted = Told.total
    assert (counted.missing_retry_count, counted.missing_found_count, counted.missing_given_up_count) == (2, 1, 0)


@pytest.mark.parametrize("inner", [False, True])
def test_a_row_that_never_comes_is_asked_for_so_often_and_then_missed(inner):
    Squares.begin()
    with harness_of(TABLES["in columns"](), inner=inner) as harness:
        assert harness.process(rows(3, 3)) == []
        output = [harness.advance(processing_ms=at * DELAY_MS) for at in range(1, ATTEMPTS + 3)]
    assert [len(each) for each in output] == [0, 0, 0 if inner else 2, 0, 0]
    assert [tuple(row) for row in output[ATTEMPTS - 1]] == ([] if inner else [(0, 3, None), (1, 3, None)])
    assert Squares.calls == [3] * (1 + ATTEMPTS)
    counted = Told.total
    assert (counted.missing_retry_count, counted.missing_found_count, counted.missing_given_up_count) == (6, 0, 2)


STEP = st.tuples(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=4),
    st.sets(st.integers(0, 5), max_size=2),
    st.integers(0, 250),
    st.booleans(),
)


@settings(max_examples=40)
@given(steps=st.lists(STEP, max_size=8), cached=st.booleans())
def test_each_event_leaves_when_a_plain_loop_says_so_over_restarts(steps, cached):
    Squares.begin()
    now, waiting, known, number = 0, [], {}, 0

    def asked(key, *, again):
        if not cached or key not in known or (again and not known[key]):
            known[key] = key in Squares.there
        return known[key]

    with harness_of(TABLES["in columns" if cached else "without a cache"]()) as harness:
        for keys, arrived, pause, restart in [*steps, *[((), set(), DELAY_MS, False)] * (ATTEMPTS + 1)]:
            Squares.there |= arrived
            now += pause
            expected, due = [], [each for each in waiting if each[0] <= now]
            waiting = [each for each in waiting if each[0] > now]
            batch = rows(*keys, first=number)
            number += len(batch)
            first = {key: asked(key, again=False) for key in dict.fromkeys(keys) if key is not None}
            for event, key, _ in batch:
                if key is None or first[key]:
                    expected.append((event, key, None if key is None else key * key))
                else:
                    waiting.append((now + DELAY_MS, 1, event, key))
            again = {key: asked(key, again=True) for key in dict.fromkeys(each[3] for each in due)}
            for _, lookups, event, key in due:
                if again[key] or lookups == ATTEMPTS:
                    expected.append((event, key, key * key if again[key] else None))
                else:
                    waiting.append((now + DELAY_MS, lookups + 1, event, key))
            assert left(harness.process(batch, processing_ms=now)) == left(expected)
            if restart:
                harness.restart()
        assert waiting == []
        assert harness.state("waiting") == {}


def test_thousands_of_events_wait_in_a_few_blobs_and_leave_whole(monkeypatch):
    monkeypatch.setattr(waiting, "ROWS_AT_ONCE", 700)
    Squares.begin()
    with harness_of(TABLES["in columns"]()) as harness:
        batch = [(at, at % 50, at % 2) for at in range(3_000)]
        assert harness.process(batch) == []
        (one, other) = harness.state("waiting").values()
        assert len(one) == len(other) == 1, "two homes, each with one blob"
        Squares.there |= set(range(50))
        assert left(harness.advance(processing_ms=DELAY_MS)) == left(
            (at, at % 50, (at % 50) ** 2) for at in range(3_000)
        )


def test_events_of_two_batches_that_are_due_at_one_time_wait_together():
    Squares.begin()
    with harness_of(TABLES["in columns"]()) as harness:
        assert harness.process([(0, 3, 7)]) == harness.process([(1, 4, 7)]) == []
        Squares.there |= {3, 4}
        assert left(harness.advance(processing_ms=DELAY_MS)) == [(0, 3, 9), (1, 4, 16)]


def test_a_full_table_is_asked_again_in_its_newest_version(tmp_path):
    def version(numbers, name):
        table = pa.table({"number": numbers, "square": [number * number for number in numbers]})
        MappedTable.of(table, ["number"], tmp_path / name)

    version([2], "1.table")
    with harness_of(Published("squares", tmp_path, None)) as harness:
        assert left(harness.process(rows(2, 3))) == [(0, 2, 4)]
        version([2, 3], "2.table")
        assert left(harness.advance(processing_ms=DELAY_MS)) == [(1, 3, 9)]


def test_a_key_that_fails_at_a_retry_fails_the_batch_and_loses_nothing():
    Squares.begin()
    with harness_of(TABLES["in columns"]()) as harness:
        harness.process(rows(3, 4))
        Squares.poison.add(3)
        Squares.there.add(4)
        with pytest.raises(ValueError, match="3 is poison"):
            harness.advance(processing_ms=DELAY_MS)
        assert Told.total.missing_retry_count == 0
        Squares.poison.clear()
        assert left(harness.advance(processing_ms=DELAY_MS)) == [(1, 4, 16)], "nothing was lost with the batch"


def test_a_key_that_fails_at_a_retry_leaves_with_its_reason_where_that_was_chosen():
    Squares.begin()
    parts = [
        parse_ddl("number long"),
        parse_ddl("id long, number long"),
        parse_ddl("id long, number long, square long"),
    ]
    output = with_dead_letters(parts[2], letter_schema(*parts[:2]))
    with harness_of(TABLES["in columns"](), letters=output) as harness:
        assert harness.process(rows(3, 4)) == []
        Squares.poison.add(3)
        assert [row.dead_letter.rows[0].id for row in harness.advance(processing_ms=DELAY_MS)] == [0]
        Squares.poison.clear()
        Squares.there |= {3, 4}
        assert left(harness.advance(processing_ms=2 * DELAY_MS)) == [(1, 4, 16, None)]
    counted = Told.total
    assert (counted.missing_retry_count, counted.missing_found_count, counted.missing_given_up_count) == (3, 1, 0)


def test_events_of_other_columns_than_those_that_wait_are_refused():
    Squares.begin()
    with harness_of(TABLES["in columns"]()) as harness:
        harness.process(rows(3))
        there = harness.snapshot()
    renamed = pa.schema([("event", pa.int64()), ("number", pa.int64())])
    with harness_of(TABLES["in columns"](), events=renamed) as harness:
        harness.restore(there)
        with pytest.raises(DataError, match=r"'squares', retry_missing: .*id int64, number int64; .*event int64"):
            harness.advance(processing_ms=DELAY_MS)


def test_fewer_attempts_after_a_restart_count_for_those_that_wait():
    Squares.begin()
    with harness_of(TABLES["in columns"]()) as harness:
        harness.process(rows(3))
        assert harness.advance(processing_ms=DELAY_MS) == []
        there = harness.snapshot()
    with harness_of(TABLES["in columns"](), attempts=1) as harness:
        harness.restore(there)
        assert left(harness.advance(processing_ms=2 * DELAY_MS)) == [(0, 3, None)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"fixed-delay": "10 s"}, "'max-attempts' is missing"),
        ({"fixed-delay": "10 s", "max-attempts": 0}, "'max-attempts': expected a whole number of 1 or more, got 0"),
        ({"delay": "10 s", "max-attempts": 1}, "'delay' is unknown; .*'fixed-delay'"),
        ({"fixed-delay": "soon", "max-attempts": 1}, "'fixed-delay': expected a duration"),
    ],
)
def test_options_that_are_wrong_are_refused_by_name(options, complaint):
    with pytest.raises(OptionError, match=rf"(?s)retry_missing.*{complaint}"):
        MissingRetries.parse("lookup_join with 'planes', retry_missing", options)
