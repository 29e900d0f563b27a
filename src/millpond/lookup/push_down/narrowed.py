"""Narrows a source to the columns and rows that are used.

Place on the data path: between the declaration of a table and its source. What a join does not use need not be sent
or cached. The invariant: a narrowed source gives the answer of the whole source, without the other columns and
without the rows that do not fulfil the conditions. It makes no difference to the answer which part the source does
and which part Millpond does.

A source that supports push-down has a method `pushed_down`, which returns the conditions that it cannot check.

Source: FLIP-221, "Future Works"; Flink's `SupportsProjectionPushDown` and `SupportsFilterPushDown`.
"""

from collections.abc import Hashable, Sequence
from copy import copy
from typing import Protocol, Self, TypeVar, cast, runtime_checkable

import pyarrow as pa

from millpond.errors import OptionError
from millpond.lookup.functions.async_function import AsyncLookupFunction
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.push_down.conditions import Conditions, RowFilter, arrow_filter
from millpond.lookup.reload.scan import Closeable, KnowsVersion, LookupScan
from millpond.suggestions import hint

F = TypeVar("F", LookupFunction, AsyncLookupFunction)
S = TypeVar("S", LookupFunction, AsyncLookupFunction, LookupScan)
N = TypeVar("N", bound="Narrowable")


@runtime_checkable
class SupportsPushDown(Protocol):
    """A source that can leave out columns or rows."""

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return a copy of the source that gives fewer columns and rows, and the conditions that remain to be checked.

        The copy's rows have at least `columns` and the columns of the remaining conditions.
        """
        ...


def narrowed(function: F, columns: Sequence[str] | None, where: Conditions) -> F:
    """Return a lookup function with these row columns, and with only the rows that fulfil the conditions.

    Raises:
        OptionError: a column is not among the source's.
    """
    narrow, wanted, rest = _pushed_down(function, columns, where)
    if not rest and narrow.row_schema.names == wanted:
        return narrow
    if isinstance(narrow, LookupFunction):
        return _NarrowedLookup(narrow, wanted, rest)
    return _NarrowedAsyncLookup(narrow, wanted, rest)


def narrowed_scan(scan: LookupScan, columns: Sequence[str] | None, where: Conditions) -> LookupScan:
    """Narrow a scan as `narrowed` does a function. A source that is both is narrowed as what it is used for."""
    narrow, wanted, rest = _pushed_down(scan, columns, where)
    return narrow if not rest and narrow.row_schema.names == wanted else _NarrowedScan(narrow, wanted, rest)


def _pushed_down(source: S, columns: Sequence[str] | None, where: Conditions) -> tuple[S, list[str], Conditions]:
    """Return the source with what it can push down, the wanted columns, and the remaining conditions."""
    names = source.row_schema.names
    wanted = list(names if columns is None else columns)
    for name in wanted:
        if name not in names:
            raise OptionError(f"{source!r}: there is no column {name!r} to look up; {hint(name, names)}")
    rest = where
    if isinstance(source, SupportsPushDown):
        pushed, rest = source.pushed_down(wanted, where)
        source = cast("S", pushed)
    return source, wanted, rest


def picked(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return some fields of a schema, in the given order."""
    return pa.schema([schema.field(name) for name in columns])


class Narrowable(Protocol):
    """A source that keeps pushed-down columns and conditions in these two attributes."""

    row_schema: pa.Schema
    conditions: Conditions


def narrow_copy(source: N, columns: Sequence[str], where: Conditions) -> N:
    """Return a copy of the source with these row columns and additional conditions."""
    narrow = copy(source)
    narrow.row_schema = picked(source.row_schema, columns)
    narrow.conditions = (*source.conditions, *where)
    return narrow


class _NarrowedLookup(LookupFunction):
    def __init__(self, function: LookupFunction, columns: Sequence[str], where: Conditions) -> None:
        self._function = function
        self._filter = RowFilter(function.key_schema, function.row_schema, columns, where)
        self.key_schema = function.key_schema
        self.row_schema = picked(function.row_schema, columns)

    @property
    def batched(self) -> bool:
        return self._function.batched

    def open(self) -> None:
        self._function.open()

    def lookup(self, keys: Key) -> Rows:
        return self._filter(keys, self._function.lookup(keys))

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        return {key: self._filter(key, rows) for key, rows in self._function.lookup_many(keys).items()}

    def close(self) -> None:
        self._function.close()

    def __repr__(self) -> str:
        return repr(self._function)


class _NarrowedAsyncLookup(AsyncLookupFunction):
    def __init__(self, function: AsyncLookupFunction, columns: Sequence[str], where: Conditions) -> None:
        self._function = function
        self._filter = RowFilter(function.key_schema, function.row_schema, columns, where)
        self.key_schema = function.key_schema
        self.row_schema = picked(function.row_schema, columns)

    @property
    def batched(self) -> bool:
        return self._function.batched

    async def open(self) -> None:
        await self._function.open()

    async def lookup(self, keys: Key) -> Rows:
        return self._filter(keys, await self._function.lookup(keys))

    async def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        return {key: self._filter(key, rows) for key, rows in (await self._function.lookup_many(keys)).items()}

    async def close(self) -> None:
        await self._function.close()

    def __repr__(self) -> str:
        return repr(self._function)


class _NarrowedScan:
    def __init__(self, scan: LookupScan, columns: Sequence[str], where: Conditions) -> None:
        self._scan = scan
        self._where = where
        self.key_schema = scan.key_schema
        self.row_schema = picked(scan.row_schema, columns)

    def scan(self) -> pa.Table:
        table = self._scan.scan()
        expression = arrow_filter(self._where)
        if expression is not None:
            table = table.filter(expression)
        return table.select(list(dict.fromkeys([*self.key_schema.names, *self.row_schema.names])))

    def version(self) -> Hashable | None:
        return self._scan.version() if isinstance(self._scan, KnowsVersion) else None

    def close(self) -> None:
        if isinstance(self._scan, Closeable):
            self._scan.close()

    def __repr__(self) -> str:
        return repr(self._scan)
