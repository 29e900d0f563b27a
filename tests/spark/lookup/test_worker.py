"""One batch joined by position gives what a loop over rows gives."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, UnavailableError
from millpond.lookup import FoundColumns, LookupTable, MappedTable, PythonLookup
from millpond.lookup.caches import column_file
from millpond.lookup.functions.keys import KeyCheck
from millpond.spark.lookup import files as lookup_files
from millpond.spark.lookup import invalidations
from millpond.spark.lookup.files import Published
from millpond.spark.lookup.hosted import decoded, encoded
from millpond.spark.lookup.rows import FullRows, PartialRows, RowsWanted, distinct_keys
from millpond.spark.lookup.skew import salts
from millpond.spark.lookup.worker import JoinPlan, join_batch, join_batches
from millpond.spark.shuffle import arrow_lots

KEYS = pa.schema([("code", pa.string()), ("hour", pa.int64())])
ROWS = pa.schema([("gate", pa.int64())])
TEXTS = pa.schema([("gate", pa.string())])
EVENT_KEY = st.tuples(st.one_of(st.none(), st.sampled_from("abc")), st.one_of(st.none(), st.integers(0, 2)))
PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 3}


def make_plan(source, *, inner=False, table_id="t"):
    wanted = RowsWanted(table_id, "gates", ("gate",), (pa.field("gate", pa.int64()),))
    if isinstance(source, Path):
        source = Published("gates", source, None)
    return JoinPlan(source=source, key_places=(1, 2), kept=2, inner=inner, wanted=wanted)


def partial_table(source):
    return LookupTable("gates", source, PARTIAL)


def make_batch(keys):
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(keys)), pa.int64()),
            pa.array([key[0] for key in keys], pa.string()),
            pa.array([key[1] for key in keys], pa.int64()),
        ],
        names=["id", "code", "hour"],
    )


class Elsewhere:
    """Rows as they come out of a state host."""

    def __init__(self, rows):
        self.rows = rows

    def match(self, keys):
        message, payload = encoded(self.rows._wanted, self.rows.match(keys))
        return decoded(message, payload.to_pybytes())


class InColumns(PythonLookup):
    """The same rows as columns, those of one key apart from each other."""

    def lookup_columns(self, keys):
        asked = list(zip(*(column.to_pylist() for column in keys), strict=True))
        found = [(number, *row) for number, key in enumerate(asked) for row in self.lookup(key)]
        rows = sorted(found, key=lambda row: row[1])
        gates = pa.record_batch([pa.array([row[1] for row in rows], pa.int64())], schema=self.row_schema)
        return FoundColumns(np.array([row[0] for row in rows], np.int64), gates)


def walk(keys, table, inner):
    """The oracle."""
    for number, key in enumerate(keys):
        gates = [] if None in key else [gate for row_key, gate in table if row_key == key]
        for gate in gates or ([] if inner else [None]):
            yield number, key[0], gate


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(EVENT_KEY, max_size=12), max_size=4),
    table=st.lists(st.tuples(EVENT_KEY.filter(lambda key: None not in key), st.integers(0, 9)), max_size=9),
    inner=st.booleans(),
)
def test_every_kind_of_table_joins_as_a_walk_over_rows_does(batches, table, inner, tmp_path_factory):
    by_key = {}
    for key, gate in table:
        by_key.setdefault(key, []).append((gate,))
    source = PythonLookup(lambda code, hour: by_key.get((code, hour)), KEYS, ROWS)
    arrow = pa.table(
        {
            "code": pa.array([key[0] for key, _ in table], pa.string()),
            "hour": pa.array([key[1] for key, _ in table], pa.int64()),
            "gate": pa.array([gate for _, gate in table], pa.int64()),
        }
    )
    path = tmp_path_factory.mktemp("full") / "1.table"
    mapped = MappedTable.of(arrow, ["code", "hour"], path)
    partial = make_plan(partial_table(source), inner=inner)
    full = make_plan(path.parent, inner=inner)
    in_rows = PartialRows(partial.wanted, partial.source.open())
    here = PartialRows(partial.wanted, partial.source.open_in_columns())
    columns = InColumns(lambda code, hour: by_key.get((code, hour)), KEYS, ROWS)
    uncached = PartialRows(partial.wanted, LookupTable("gates", columns).open_in_columns())
    cached = PartialRows(partial.wanted, LookupTable("gates", columns, PARTIAL).open_in_columns())
    every = [in_rows, here, Elsewhere(here), uncached, Elsewhere(uncached), cached]
    for plan, rows in (*((partial, rows) for rows in every), (full, FullRows(full.wanted, mapped))):
        for keys in batches:
            batch = make_batch(keys)
            numbers, asked = distinct_keys([batch.column(place) for place in plan.key_places])
            joined = join_batch(plan, batch, numbers, rows.match(asked))
            assert joined.schema.names == ["id", "code", "gate"]
            answer = list(zip(*(column.to_pylist() for column in joined.columns), strict=True))
            expected = list(walk(keys, table, inner))
            assert (
                answer == expected
                if plan is full or rows in every[:3]
                else sorted(map(repr, answer)) == sorted(map(repr, expected))
            )


@given(st.lists(EVENT_KEY, max_size=30))
def test_keys_are_numbered_once_each(keys):
    batch = make_batch(keys)
    numbers, columns = distinct_keys([batch.column(1), batch.column(2)])
    distinct = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert len(set(distinct)) == len(distinct)
    for key, number in zip(keys, numbers.tolist(), strict=True):
        assert (number == -1) if None in key else (distinct[number] == key)


@given(st.lists(EVENT_KEY, max_size=40), st.sampled_from([0.01, 0.2, 1.0]))
def test_only_events_of_hot_keys_and_those_without_a_key_are_salted(keys, share):
    batch = make_batch(keys)
    found = salts([batch.column(1), batch.column(2)], share).tolist()
    for place, (key, salt) in enumerate(zip(keys, found, strict=True)):
        spread = None in key or keys.count(key) > share * len(keys)
        assert salt == (place if spread else 0)


def test_small_batches_are_joined_before_their_keys_are_asked_for():
    asked = []

    def find(code, hour):
        asked.append((code, hour))

    plan = make_plan(partial_table(PythonLookup(find, KEYS, ROWS)), table_id="small batches")
    batches = [make_batch([("a", 1)]), make_batch([("a", 1), ("b", 2)]), make_batch([])]
    (joined,) = join_batches(plan, iter(batches), lambda _: None)
    assert joined.num_rows == 3
    assert asked == [("a", 1), ("b", 2)]


def test_a_key_is_asked_once_per_batch_and_what_was_counted_is_reported_per_batch(monkeypatch):
    monkeypatch.setattr(arrow_lots, "ROWS_OF_A_BATCH", 2)
    asked = []

    def find(code, hour):
        asked.append((code, hour))

    reported = []
    plan = make_plan(partial_table(PythonLookup(find, KEYS, ROWS)), table_id="asked once")
    batches = [make_batch([("a", 1), ("a", 1), ("b", None)]), make_batch([("a", 1), ("c", 2)])]
    joined = list(join_batches(plan, iter(batches), reported.append))
    assert [batch.num_rows for batch in joined] == [3, 2]
    assert asked == [("a", 1), ("c", 2)]
    assert [(each.stats.hit_count, each.stats.miss_count, each.stats.load_count) for each in reported] == [
        (0, 1, 1),
        (1, 1, 1),
    ]


def test_a_used_worker_keeps_its_cache_and_another_table_has_its_own():
    asked = []

    def find(code, hour):
        asked.append((code, hour))

    for table_id in ("one", "one", "two"):
        plan = make_plan(partial_table(PythonLookup(find, KEYS, ROWS)), table_id=f"kept {table_id}")
        list(join_batches(plan, iter([make_batch([("a", 1)])]), lambda _: None))
    assert asked == [("a", 1), ("a", 1)]


def test_rows_that_were_cached_and_rows_that_were_loaded_reach_their_keys_from_a_host():
    source = PythonLookup(lambda code, hour: [(f"{code}{hour}.{row}",) for row in range(hour)], KEYS, TEXTS)
    wanted = RowsWanted("mixed", "gates", ("gate",), (pa.field("gate", pa.string()),))
    table = LookupTable("gates", source, {**PARTIAL, "lookup.partial-cache.max-rows": 100})
    rows = Elsewhere(PartialRows(wanted, table.open_in_columns()))
    plan = replace(make_plan(table), wanted=wanted)
    for last in (3, 5, 9):
        keys = [(code, hour % 3) for hour in range(last) for code in "cab"[: 1 + hour % 3]]
        batch = make_batch(keys)
        numbers, asked = distinct_keys([batch.column(1), batch.column(2)])
        joined = join_batch(plan, batch, numbers, rows.match(asked))
        gates = [f"{code}{hour}.{row}" if hour else None for code, hour in keys for row in range(max(hour, 1))]
        assert joined.column(2).to_pylist() == gates


def test_a_cache_in_a_worker_hears_of_invalidations_when_a_partition_begins():
    asked = []

    def find(code, hour):
        asked.append((code, hour))

    class Told:
        """The driver's newest file."""

        invalidated = b""

        def newest(self):
            return self.invalidated

    plan = replace(make_plan(partial_table(PythonLookup(find, KEYS, ROWS)), table_id="told"), invalidations=Told())
    batch = make_batch([("a", 1), ("b", 2)])
    keys = pa.table({"__version": [1, 1], "code": ["b", "z"], "hour": [2, 0]})
    for told in (b"", b"", invalidations.Invalidated(1, 0, keys).encode()):
        plan.invalidations.invalidated = told
        list(join_batches(plan, iter([batch]), lambda _: None))
    assert asked == [("a", 1), ("b", 2), ("b", 2)]


def test_a_failed_lookup_fails_the_batch():
    def fail(code, hour):
        raise ZeroDivisionError("source bug")

    plan = make_plan(partial_table(PythonLookup(fail, KEYS, ROWS)), table_id="fails")
    with pytest.raises(ZeroDivisionError, match="source bug"):
        list(join_batches(plan, iter([make_batch([("a", 1)])]), lambda _: None))


def test_an_event_whose_key_fails_leaves_as_a_dead_letter_with_its_reason_and_the_others_are_joined():
    def find(code, hour):
        if code == "b":
            raise ZeroDivisionError("no gate for b")
        return [(hour,)]

    plan = make_plan(partial_table(PythonLookup(find, KEYS, ROWS)), table_id="letters", inner=True)
    event = pa.struct([("id", pa.int64()), ("code", pa.string())])
    letter = pa.struct(
        [
            ("key", pa.struct([("code", pa.string()), ("hour", pa.int64())])),
            ("rows", pa.list_(event)),
            ("timer_ms", pa.int64()),
            ("error", pa.string()),
            ("traceback", pa.string()),
            ("batch_id", pa.int64()),
        ]
    )
    plan = replace(plan, letter=letter, wanted=replace(plan.wanted, dead_letter=True))
    reported = []
    keys = [("a", 1), ("b", 1), ("c", 2), ("b", 2), ("a", 1), (None, 1)]
    joined, letters = join_batches(plan, iter([make_batch(keys)]), reported.append)
    assert joined.drop_columns(["dead_letter"]).to_pydict() == {
        "id": [0, 2, 4],
        "code": ["a", "c", "a"],
        "gate": [1, 2, 1],
    }
    assert joined.column("dead_letter").null_count == 3
    assert letters.select(["id", "code", "gate"]).to_pydict() == {
        "id": [None] * 2,
        "code": [None] * 2,
        "gate": [None] * 2,
    }
    found = letters.column("dead_letter").to_pylist()
    assert [each["key"] for each in found] == [{"code": "b", "hour": 1}, {"code": "b", "hour": 2}]
    assert [each["rows"] for each in found] == [[{"id": 1, "code": "b"}], [{"id": 3, "code": "b"}]]
    assert {each["error"] for each in found} == {"ZeroDivisionError: no gate for b"}
    assert all("in find" in each["traceback"] for each in found)
    stats = reported[0].stats
    assert (stats.miss_count, stats.num_load_failure, stats.event_hit_count) == (4, 2, 1)


def test_a_value_that_is_not_of_its_declared_type_is_named():
    plan = make_plan(partial_table(PythonLookup(lambda code, hour: [("gate 7",)], KEYS, ROWS)), table_id="wrong type")
    with pytest.raises(DataError, match=r"'gates'.*'gate'.*int64"):
        list(join_batches(plan, iter([make_batch([("a", 1)])]), lambda _: None))


def test_a_new_version_of_a_full_table_is_found_by_the_next_partition_and_not_within_one(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_lots, "ROWS_OF_A_BATCH", 1)

    def write(version, gate):
        table = pa.table({"code": ["a"], "hour": [1], "gate": [gate]})
        MappedTable.of(table, ["code", "hour"], tmp_path / f"{version:03d}.table")

    write(1, 10)
    plan = make_plan(tmp_path, table_id="versions")

    def batches():
        yield make_batch([("a", 1)])
        write(2, 20)
        yield make_batch([("a", 1)])

    gates = [batch.column(2).to_pylist() for batch in join_batches(plan, batches(), lambda _: None)]
    assert gates == [[10], [10]]
    (after,) = join_batches(plan, iter([make_batch([("a", 1)])]), lambda _: None)
    assert after.column(2).to_pylist() == [20]


def test_a_full_table_whose_files_are_not_there_is_unavailable_and_not_empty(tmp_path):
    plan = make_plan(tmp_path / "nowhere", table_id="nowhere")
    with pytest.raises(UnavailableError, match=r"'gates'.*nowhere"):
        list(join_batches(plan, iter([make_batch([("a", 1)])]), lambda _: None))


def test_joins_of_other_columns_share_the_file_of_a_full_table(tmp_path):
    arrow = pa.table({"code": ["a"], "hour": [1], "gate": [1], "pier": ["north"]})
    MappedTable.of(arrow, ["code", "hour"], tmp_path / "1.table")
    gates = make_plan(tmp_path)
    wanted = replace(gates.wanted, columns=("pier",), row_fields=(pa.field("pier", pa.string()),))
    for plan, expected in ((gates, 1), (replace(gates, wanted=wanted), "north"), (gates, 1)):
        (joined,) = join_batches(plan, iter([make_batch([("a", 1)])]), lambda _: None)
        assert joined.column(2).to_pylist() == [expected]


def test_a_version_that_a_reload_removed_is_passed_over(tmp_path, monkeypatch):
    def write(version):
        table = pa.table({"code": ["a"], "hour": [1], "gate": [version]})
        MappedTable.of(table, ["code", "hour"], tmp_path / f"{version}.table")

    write(1)

    def read_late(path):
        if path.name == "1.table":
            write(2)
            path.unlink()
        return MappedTable(path)

    monkeypatch.setattr(lookup_files, "MappedTable", read_late)
    (joined,) = join_batches(make_plan(tmp_path, table_id="outdated"), iter([make_batch([("a", 1)])]), lambda _: None)
    assert joined.column(2).to_pylist() == [2]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_column_of_text_too_large_for_its_type_is_held_and_joined(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(column_file, "_MOST_BYTES", 10)
    texts = pa.chunked_array([pa.array(["one text"], kind), pa.array(["another"], kind)])
    table = pa.table({"code": ["a", "b"], "hour": pa.array([1, 1]), "gate": texts})
    MappedTable.of(table, ["code", "hour"], tmp_path / "1.table")
    plan = make_plan(tmp_path, table_id=f"large {kind}")
    plan = replace(plan, wanted=replace(plan.wanted, row_fields=(pa.field("gate", kind),)))
    (joined,) = join_batches(plan, iter([make_batch([("b", 1), ("c", 1)])]), lambda _: None)
    assert joined.column(2) == pa.array(["another", None], kind)


def test_a_key_that_the_column_cannot_hold_is_invalidated_nowhere_and_stops_no_other():
    local = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    schema = pa.schema([("n", pa.int32()), ("price", pa.decimal128(9, 2))])
    driver = invalidations.PublishedInvalidations("gates", schema, local)
    try:
        driver.add([(1 << 70, 1), (5, Decimal("1E+100")), (7, 2)])
        driver.add([(Decimal("8.0"), 3)])
        heard = invalidations.Invalidated.decode(driver.place.newest())
        assert heard.since(1) == [(8, Decimal("3.00"))]
        assert KeyCheck("gates", schema)(heard.since(0)) == [(7, Decimal("2.00")), (8, Decimal("3.00"))]
    finally:
        driver.close()


def test_an_invalidation_that_fails_leaves_nothing_to_the_next():
    local = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    driver = invalidations.PublishedInvalidations("gates", KEYS, local)
    try:
        with pytest.raises(UnicodeEncodeError):
            driver.add([("\ud800", 1)])
        driver.add([("a", 2)])
        assert invalidations.Invalidated.decode(driver.place.newest()).since(0) == [("a", 2)]
    finally:
        driver.close()
