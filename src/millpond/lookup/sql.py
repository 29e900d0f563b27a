"""A table of a SQL database as a lookup source, through SQLAlchemy.

One query per batch of keys: `WHERE key IN (...)`, in pieces only where a batch has more keys than a
query may have parameters. The invariant: every row that the database returns belongs to a key that
was asked for, as Python compares keys. A database that compares otherwise (a collation that ignores
case, padded characters) would leave rows silently unmatched, so such a row is an error.

Table and columns are checked when the source is opened; the Arrow types come from the database's.
A connection that fails is an `UnavailableError`, which is tried again; a refused query is not.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.errors import DataError, MissingDependencyError, OptionError, UnavailableError
from millpond.lookup.function import Key, LookupFunction, Rows, check_key_types

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table

_MOST_PARAMETERS = 30_000
"""PostgreSQL and SQLite take 32,766 parameters in a query."""


class SqlLookup(LookupFunction):
    """Rows of a database table by its key columns; also a scan, for a full cache.

    - Delivery: one query per batch of keys. Freshness: what the database committed. Recovery: a
      lost connection is opened again at the next try.

    Args:
        url: SQLAlchemy's database URL, such as `postgresql+psycopg://user@host/shop`.
        table: the table or view, `schema.table` where it is not in the default schema.
        keys: the key columns.
        columns: the columns of a row.

    Raises:
        OptionError: the table or a column is not there, or has a type without an Arrow equal.
        UnavailableError: the database does not answer.

    >>> planes = SqlLookup("sqlite://", table="planes", keys=["tailnum"], columns=["year"])
    >>> planes.open()
    Traceback (most recent call last):
    millpond.errors.OptionError: sqlite://: there is no table 'planes'; check the table's name and schema
    """

    def __init__(self, url: str, table: str, keys: Sequence[str], columns: Sequence[str]) -> None:
        self._url = url
        self._table_name = table
        self._keys = tuple(keys)
        self._columns = tuple(columns)
        self._engine: Engine | None = None
        self._table: Table | None = None
        self._schemas: tuple[pa.Schema, pa.Schema] | None = None
        if not self._keys:
            raise OptionError(f"SqlLookup of {table!r}: expected at least one key column, got none")

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns with their Arrow types; connects if need be."""
        return self._described()[0]

    @property
    def row_schema(self) -> pa.Schema:
        """The row's columns with their Arrow types; connects if need be."""
        return self._described()[1]

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: everything but the connection."""
        return {**self.__dict__, "_engine": None, "_table": None}

    def open(self) -> None:
        """Connect, and check the table and its columns."""
        if self._table is not None:
            return
        sqlalchemy = _sqlalchemy()
        if self._engine is None:
            self._engine = sqlalchemy.create_engine(self._url, pool_pre_ping=True)
        schema, _, name = self._table_name.rpartition(".")
        try:
            self._table = sqlalchemy.Table(
                name, sqlalchemy.MetaData(), schema=schema or None, autoload_with=self._engine
            )
        except sqlalchemy.exc.NoSuchTableError as error:
            raise OptionError(
                f"{self._where}: there is no table {self._table_name!r}; check the table's name and schema"
            ) from error
        except sqlalchemy.exc.DBAPIError as error:
            raise self._unavailable(error) from error
        missing = [name for name in (*self._keys, *self._columns) if name not in self._table.columns]
        if missing:
            there = ", ".join(column.name for column in self._table.columns)
            self.close()
            raise OptionError(f"{self._where}: table {self._table_name!r} has no column {missing}; it has {there}")

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()
        self._engine = self._table = None

    def lookup(self, keys: Key) -> Rows:
        """The rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key, by one query."""
        found: dict[Key, Rows] = {key: [] for key in keys}
        width = len(self._keys)
        asked = list(found)
        step = _MOST_PARAMETERS // width
        for first in range(0, len(asked), step):
            for values in self._select(asked[first : first + step]):
                rows = found.get(values[:width])
                if rows is None:
                    raise DataError(
                        f"{self._where}, table {self._table_name!r}: the database returned key {values[:width]!r}, "
                        "which was not asked for in this form; it compares keys otherwise than by equal values (case, "
                        "padding, type). Look up through a view that gives the key in the form the events have"
                    )
                rows.append(values[width:])
        return found

    def scan(self) -> pa.Table:
        """The whole table, keys first."""
        key_schema, row_schema = self._described()
        fields = {field.name: field for field in (*key_schema, *row_schema)}
        rows = self._select(None)
        columns = list(zip(*rows, strict=True)) or [()] * (len(key_schema) + len(row_schema))
        by_name = dict(zip((*self._keys, *self._columns), columns, strict=True))
        return pa.table([pa.array(by_name[name], field.type) for name, field in fields.items()], names=list(fields))

    def _select(self, keys: Sequence[Key] | None) -> list[tuple[Any, ...]]:
        sqlalchemy = _sqlalchemy()
        self.open()
        assert self._table is not None  # noqa: S101 - open() has set both, or raised
        assert self._engine is not None  # noqa: S101
        key_columns = [self._table.columns[name] for name in self._keys]
        row_columns = [self._table.columns[name].label(f"row_{place}") for place, name in enumerate(self._columns)]
        query = sqlalchemy.select(*key_columns, *row_columns)
        if keys is not None and len(key_columns) == 1:
            query = query.where(key_columns[0].in_([key[0] for key in keys]))
        elif keys is not None:
            query = query.where(sqlalchemy.tuple_(*key_columns).in_(keys))
        try:
            with self._engine.connect() as connection:
                return [tuple(row) for row in connection.execute(query)]
        except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError, sqlalchemy.exc.TimeoutError) as error:
            raise self._unavailable(error) from error
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise DataError(f"{self._where}, table {self._table_name!r}: the lookup was refused: {error}") from error

    def _described(self) -> tuple[pa.Schema, pa.Schema]:
        if self._schemas is None:
            self.open()
            key_schema, row_schema = self._arrow_schema(self._keys), self._arrow_schema(self._columns)
            check_key_types(f"{self._where}, table {self._table_name!r}", key_schema)
            self._schemas = key_schema, row_schema
        return self._schemas

    def _arrow_schema(self, names: Sequence[str]) -> pa.Schema:
        assert self._table is not None  # noqa: S101 - the caller has opened it
        return pa.schema([(name, self._arrow_type(name, self._table.columns[name].type)) for name in names])

    def _arrow_type(self, name: str, sql_type: Any) -> pa.DataType:
        types = _sqlalchemy().types
        if isinstance(sql_type, types.Numeric) and not isinstance(sql_type, types.Float):
            if sql_type.precision is not None:
                return pa.decimal128(sql_type.precision, sql_type.scale or 0)
        else:
            for known, arrow_type in (
                (types.Boolean, pa.bool_()),
                (types.Integer, pa.int64()),
                (types.Float, pa.float64()),
                (types.DateTime, pa.timestamp("us", "UTC" if getattr(sql_type, "timezone", False) else None)),
                (types.Date, pa.date32()),
                (types.LargeBinary, pa.binary()),
                (types.String, pa.string()),
            ):
                if isinstance(sql_type, known):
                    return arrow_type
        raise OptionError(
            f"{self._where}, table {self._table_name!r}, column {name!r}: SQL type {sql_type!r} has no Arrow type "
            "here; look up through a view that casts it to text, a number, a date or a timestamp"
        )

    @property
    def _where(self) -> str:
        url = _sqlalchemy().engine.make_url(self._url)
        return str(url.render_as_string(hide_password=True))

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self._where}, table {self._table_name!r}: the database did not answer: {error}")


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise MissingDependencyError(
            "SQL lookup tables need SQLAlchemy, which is not installed; run: pip install 'millpond[sql]'"
        ) from error
    return sqlalchemy
