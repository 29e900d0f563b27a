"""What type checkers make of `millpond.lookup`."""

from collections.abc import Sequence
from typing import Any, assert_type

import pyarrow as pa

from millpond.lookup import (
    FullCachingLookup,
    LookupFunction,
    LookupStats,
    LookupTable,
    PartialCachingLookup,
    PythonLookup,
    SqlLookup,
    TableScan,
)
from millpond.lookup import Key as LookupKey
from millpond.lookup import Rows as LookupRows


class OfAUser(LookupFunction):
    """A source of a user's own."""

    key_schema = pa.schema([("tailnum", pa.string())])
    row_schema = pa.schema([("model", pa.string())])

    def lookup(self, keys: LookupKey) -> LookupRows:
        return [(keys[0],)]


def a_table_is_opened_into_a_function(url: str) -> None:
    table = LookupTable("planes", SqlLookup(url, "planes", keys=["tailnum"], columns=["model"]), {})
    with table.open() as planes:
        assert_type(planes.lookup(("N101",)), list[tuple[Any, ...]])
        assert_type(planes.lookup_many([("N101",)]), dict[tuple[Any, ...], list[tuple[Any, ...]]])
    assert_type(table.stats(), LookupStats)
    assert_type(table.stats().hit_count, int)


def caches_take_every_source(scan: TableScan) -> Sequence[LookupFunction]:
    return [PartialCachingLookup(OfAUser(), None), FullCachingLookup(scan, trigger=None)]


def what_is_no_source_is_an_error() -> None:
    PartialCachingLookup(len, None)  # type: ignore[arg-type]
    PythonLookup("model_of", OfAUser.key_schema, OfAUser.row_schema)  # type: ignore[arg-type]
