"""A table of a SQL database as a lookup source.

This module has the declaration and checks the keys. `PostgresqlTable` sends the queries through psycopg, and
`SqlAlchemyTable` those to every other database. The invariant: both give the same answers, with **one query per
batch of keys, rows in columns, and no row for a key that cannot exist**.

Table and columns are checked when the source is opened, and the Arrow types follow from the database's types. They
are pickled with the source, so another process knows them already. A failed connection is an `UnavailableError`,
which is tried again. A refused query is a `DataError`, which is not.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from millpond.errors import OptionError
from millpond.lookup.functions.columns import FoundColumns
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.push_down.conditions import Conditions
from millpond.lookup.push_down.narrowed import picked
from millpond.lookup.sources.declared import declared_schema
from millpond.lookup.sources.postgresql import PostgresqlTable
from millpond.lookup.sources.sql_keys import key_columns, possible_keys
from millpond.lookup.sources.sqlalchemy_table import SqlAlchemyTable

_PSYCOPG = ("postgresql", "postgres", "postgresql+psycopg")


class SqlTable(Protocol):
    """A table in a database, as `SqlLookup` uses it. It can be pickled, without its connections."""

    def open(self) -> None:
        """Check the table and its columns."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...

    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """Return the key columns and the columns of a row, with their Arrow types."""
        ...

    def narrowed(self, columns: Sequence[str], conditions: Conditions) -> "SqlTable":
        """Return the same table with fewer columns and other conditions."""
        ...

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """Return the rows of distinct keys, given as one array of the column's type for each key column."""
        ...

    def scan_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield every row, keys first."""
        ...

    def version(self, changed_by: str) -> tuple[Any, ...]:
        """Return the greatest value of a column, and the number of rows."""
        ...


class SqlLookup(LookupFunction):
    """Rows of a database table by its key columns; also a scan, for a full cache.

    - Delivery: one query per batch of keys.
    - Freshness: what the database has committed.
    - Recovery: a lost connection is opened again at the next try.

    Args:
        url: the database's URL in SQLAlchemy's form, such as `postgresql://user@host/shop`.
        table: the table or view, as `schema.table` if it is not in the default schema.
        keys: the key columns.
        columns: the columns of a row.
        timeout_ms: the longest wait for a connection, for the answer to a query, and for the next rows of a scan.
        changed_by: a column whose greatest value grows with every change, such as the time of the change. While its
            greatest value and the number of rows stay the same, a full cache is not loaded again.

    Raises:
        OptionError: the table or a column does not exist, or a column's type has no Arrow equivalent.
        UnavailableError: the database does not answer.

    >>> planes = SqlLookup("sqlite://", table="planes", keys=["tailnum"], columns=["year"])
    >>> planes.open()
    Traceback (most recent call last):
    millpond.errors.OptionError: sqlite://, table 'planes': there is no such table; check its name and schema
    """

    def __init__(
        self,
        url: str,
        table: str,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        timeout_ms: int = 30_000,
        changed_by: str | None = None,
    ) -> None:
        if not keys:
            raise OptionError(f"SqlLookup of {table!r}: expected at least one key column, got none")
        self._name = table
        self._changed_by = changed_by
        self.conditions: Conditions = ()
        self._schemas: tuple[pa.Schema, pa.Schema] | None = None
        kind = PostgresqlTable if url.partition("://")[0] in _PSYCOPG else SqlAlchemyTable
        self._table: SqlTable = kind(url, table, keys, columns, (), timeout_ms)

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns with their Arrow types. Connects if they are not known yet."""
        return self._described()[0]

    @property
    def row_schema(self) -> pa.Schema:
        """The row's columns with their Arrow types. Connects if they are not known yet."""
        return self._described()[1]

    def open(self) -> None:
        """Check the table and its columns, unless they are known already."""
        self._described()

    def close(self) -> None:
        """Close the connections."""
        self._table.close()

    def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, by one query."""
        distinct = list(dict.fromkeys(keys))
        positions, columns = key_columns(distinct, self.key_schema)
        found = self._found(positions, columns)
        return found.by_key(distinct)

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """Return the rows of distinct keys, given as one array without nulls for each key column."""
        return self._found(*possible_keys(keys, self.key_schema))

    def _found(self, positions: "np.typing.NDArray[np.int64]", columns: Sequence[pa.Array]) -> FoundColumns:
        if not len(positions):
            return FoundColumns(positions, self.row_schema.empty_table().to_batches()[0])
        found = self._table.lookup_columns(columns)
        return FoundColumns(positions[found.numbers], found.rows)

    def scan(self) -> pa.Table:
        """Return the whole table, keys first."""
        return self.scan_batches().read_all()

    def scan_batches(self) -> pa.RecordBatchReader:
        """Return the whole table in batches, keys first. Only one batch of rows exists as Python objects."""
        return pa.RecordBatchReader.from_batches(declared_schema(*self._described()), self._table.scan_batches())

    def version(self) -> tuple[Any, ...] | None:
        """Return the greatest value of `changed_by`, and the number of rows; None without such a column."""
        return None if self._changed_by is None else self._table.version(self._changed_by)

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return the same table, whose queries read fewer columns and have the conditions in WHERE. None remains."""
        conditions, schemas = (*self.conditions, *where), self._schemas
        if schemas is not None:
            schemas = schemas[0], picked(schemas[1], columns)
        narrow = copy(self)
        table = self._table.narrowed(columns, conditions)
        vars(narrow).update(conditions=conditions, _table=table, _schemas=schemas)
        return narrow, ()

    def _described(self) -> tuple[pa.Schema, pa.Schema]:
        if self._schemas is None:
            self._schemas = self._table.schemas()
        return self._schemas

    def __repr__(self) -> str:
        return f"SqlLookup({self._name!r})"
