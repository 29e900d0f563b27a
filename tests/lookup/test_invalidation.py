"""Keys whose rows have changed are forgotten by every cache of their table; Debezium's events tell which they are."""

import json

import pyarrow as pa
import pytest

from millpond.errors import DataError, OptionError
from millpond.lookup import LookupTable, PythonLookup, TableScan, ThreadedLookup
from millpond.lookup.sources.debezium import changed_keys

from .in_columns import InColumns

KEYS, ROWS = pa.schema([("n", pa.int64())]), pa.schema([("text", pa.string())])
PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 10}
FORMS = {
    "rows": lambda source: (table := LookupTable("numbers", source, PARTIAL), table.open()),
    "columns": lambda source: (table := LookupTable("numbers", source, PARTIAL), InColumns(table.open_in_columns())),
    "async": lambda source: (table := LookupTable("numbers", ThreadedLookup(source), PARTIAL), table.open()),
}


@pytest.mark.parametrize("opened", FORMS.values(), ids=FORMS)
def test_invalidated_keys_are_loaded_anew_and_others_are_not(opened):
    asked = []

    def find(n):
        asked.append(n)
        return [(f"{n}, {len(asked)}",)]

    table, lookup = opened(PythonLookup(find, KEYS, ROWS))
    with table:
        lookup.lookup_many([(1,), (2,), (3,)])
        table.invalidate([(1,), (1,), (9,)])
        lookup.lookup_many([(1,), (2,), (3,)])
        assert sorted(asked) == [1, 1, 2, 3]
        table.invalidate()
        lookup.lookup_many([(1,), (2,)])
        assert sorted(asked) == [1, 1, 1, 2, 2, 3]
        with pytest.raises(
            DataError, match=r"'numbers', invalidate, key column 'n': expected values of int64, got str"
        ):
            table.invalidate([("1",)])


def test_a_full_table_has_no_keys_to_forget_and_a_table_without_a_cache_nothing():
    full = LookupTable("codes", TableScan(pa.table({"n": [1], "text": ["a"]}), ["n"]), {"lookup.cache": "FULL"})
    with pytest.raises(OptionError, match=r"'codes'.*use reload\(\)"):
        full.invalidate([(1,)])
    uncached = LookupTable("codes", PythonLookup(lambda n: [], KEYS, ROWS))
    uncached.invalidate([(1,)])
    assert uncached.stats().miss_count == 0


def event(op, before=None, after=None, *, schema=False):
    payload = {"op": op, "before": before, "after": after, "source": {"db": "shop"}, "ts_ms": 1}
    return json.dumps({"schema": {}, "payload": payload} if schema else payload)


def test_debeziums_events_tell_the_keys_before_and_after_each_change():
    schema = pa.schema([("shop", pa.string()), ("n", pa.int32())])
    messages = [
        event("c", after={"n": 1, "shop": "a", "name": "x"}),
        event("r", after={"n": 1, "shop": "b"}, schema=True),
        event("u", before={"n": 2, "shop": "a"}, after={"n": 3, "shop": "a"}),
        event("d", before={"n": 4, "shop": None}),
        None,
        event("u", before=None, after={"n": 1, "shop": "a"}).encode(),
        event("m"),
    ]
    assert changed_keys(messages, schema) == [("a", 1), ("b", 1), ("a", 2), ("a", 3), (None, 4)]
    assert changed_keys([*messages, event("t")], schema) is None


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("nonsense", "expected JSON"),
        ("[1]", r"op of c, r, u, d or t, got \[1\]"),
        ("{}", "op of c, r, u, d or t"),
        (event("x"), "op of c, r, u, d or t"),
        (event("d", before={"name": "x"}), "expected a row with n, got .*replica identity"),
        (event("c", after={"n": "many"}), "'n': expected int64, got str"),
    ],
)
def test_what_is_no_change_event_is_named(message, complaint):
    with pytest.raises(DataError, match=complaint):
        changed_keys([message], KEYS)


def test_a_key_whose_form_depends_on_debeziums_settings_is_refused():
    with pytest.raises(OptionError, match=r"'day'.*date32"):
        changed_keys([], pa.schema([("day", pa.date32())]))
